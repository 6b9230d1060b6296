"""The tools of an agent: bounded JSON, refusals as JSON, and the official SDK over stdio where it is installed."""

import asyncio
import importlib.util
import json
import os
import sys

import pytest

from sigprop.integrations import mcp

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, std=0.02, depth=3):
        super().__init__()
        self.stem = nn.Linear(16, 64)
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(depth))
        self.head = nn.Linear(64, 4)
        for block in self.blocks:
            nn.init.normal_(block.weight, 0.0, std)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


def batch():
    return torch.randn(16, 16)
"""


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "agent_net.py"
    path.write_text(NET)
    return f"{path}:Net"


def told(text):
    assert len(text) < 20_000
    return json.loads(text)


def test_check_finds_what_is_wrong(net):
    found = told(mcp.check(f"{net}(depth=6)"))
    assert "problem" in found["verdict"]
    assert found["findings"]["rows"][0]["severity"] == "problem"


def test_predict_is_bounded(net):
    found = told(mcp.predict(f"{net}(depth=40, std=0.17)"))
    assert len(found["blocks"]["rows"]) == mcp.ROWS
    assert found["blocks"]["left_out"] == 40 - mcp.ROWS


def test_diff_names_the_tensor(net):
    found = told(mcp.diff(net, f"{net}(std=0.2)"))
    assert not found["equal"]
    assert found["groups"]["rows"][0]["group"] == "blocks.*.weight"
    assert told(mcp.diff(net, net))["equal"]


def test_plan_writes_and_exports(tmp_path):
    settings = ["depth=2", "width=32", "heads=2"]
    found = told(mcp.plan("transformer", export="python", settings=settings))
    assert "def init_(model" in found["code"]
    mcp.plan("transformer", out=str(tmp_path / "plan.json"), settings=settings)
    assert (tmp_path / "plan.json").is_file()


@pytest.mark.parametrize("call", [lambda: mcp.check("nowhere.py:Net"), lambda: mcp.plan("transformer", "unti")])
def test_refusals_are_answers(call):
    found = told(call())
    assert set(found) == {"error", "kind"}
    assert "\n" not in found["error"]


def test_the_sdk_serves_them(net):
    if importlib.util.find_spec("mcp") is None:
        with pytest.raises(Exception, match=r"pip install 'sigprop\[mcp\]'"):
            mcp.server()
        return
    answer = asyncio.run(asked(net))
    assert "problem" in told(answer)["verdict"]


async def asked(net):
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    start = StdioServerParameters(command=sys.executable, args=["-m", "sigprop", "mcp"], env=dict(os.environ))
    async with stdio_client(start) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        assert {tool.name for tool in tools.tools} == {"check", "predict", "diff", "plan"}
        found = await session.call_tool("check", {"model": f"{net}(depth=6)"})
        return found.content[0].text
