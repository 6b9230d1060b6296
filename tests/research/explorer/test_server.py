"""Who the explorer answers: this machine, this page."""

import http.client
import json
import threading

import pytest

from sigprop.cli.app import app, exit_code
from sigprop.research.explorer import Explorer

SMALL = "/view?a.depth=4&a.width=64"


@pytest.fixture(scope="module")
def server():
    with Explorer(0) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


def asked(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(headers.pop("method", "GET"), path, skip_host=True)
    connection.putheader("Host", headers.pop("Host", f"127.0.0.1:{server.server_port}"))
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_it_is_bound_to_loopback_only(server):
    assert server.server_address[0] == "127.0.0.1"


def test_page_script_and_view(server):
    answer, page = asked(server, "/")
    assert answer.status == 200
    assert "sigprop explore" in page
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert asked(server, "/explore.js")[0].headers["Content-Type"].startswith("text/javascript")
    answer, body = asked(server, SMALL)
    found = json.loads(body)
    assert answer.status == 200
    assert len(found["charts"]) == 4
    assert found["planes"]["a"].startswith("<svg")
    assert "depth=4" in found["python"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "evil.example:8765"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", SMALL])
def test_other_names_and_origins_are_refused(server, headers, path):
    answer, body = asked(server, path, **headers)
    assert answer.status == 403
    assert body.startswith("only")


def test_its_own_page_is_answered(server):
    own = f"http://localhost:{server.server_port}"
    assert asked(server, SMALL, Host=own[7:], Origin=own, Sec_Fetch_Site="same-origin")[0].status == 200


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/../etc/passwd", 404, "no such page"),
        ("/view?a.depth=1e9", 400, "from 2 to 128"),
        ("/view?a.architecture=nothing", 400, "nothing"),
        ("/view?x=1", 400, "a.NAME"),
        ("/view?a.depth=" + "4" * 5000, 414, "too long"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(server, path, status, words):
    answer, body = asked(server, path)
    assert answer.status == status
    assert words in body
    assert "\n" not in body
    assert "Traceback" not in body


def test_nothing_can_be_sent(server):
    assert asked(server, "/", method="POST")[0].status == 501


def test_a_port_in_use_is_said_in_one_line(server, capsys):
    assert exit_code(app, ["explore", "--port", str(server.server_port)]) == 2
    told = capsys.readouterr().err
    assert f"port {server.server_port} is in use" in told
    assert "--port" in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize("port", ["-1", "70000", "http"])
def test_a_port_that_is_none_is_said_in_one_line(port, capsys):
    assert exit_code(app, ["explore", "--port", port]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
