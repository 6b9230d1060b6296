"""Help, version and completion need no torch; `import sigprop` loads a name's room when the name is used."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy", "matplotlib", "transformers", "numpy")


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('|'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.strip().splitlines()[-1].split("|"))


@pytest.mark.parametrize(
    "code",
    [
        "import sigprop",
        "import sigprop.cli",
        "from sigprop.cli.app import app\nfrom sigprop.cli.app import exit_code\nexit_code(app, ['predict', '-h'])",
    ],
)
def test_nothing_heavy_is_loaded(code):
    assert not loaded_after(code) & set(HEAVY)


def test_public_names_are_functions_even_after_the_packages_are_imported():
    code = (
        "import sigprop.measurement, sigprop.capture, sigprop\n"
        "assert all(callable(getattr(sigprop, name)) for name in sigprop.__all__)\n"
        "assert set(sigprop.__all__) <= set(dir(sigprop))"
    )
    assert "torch" in loaded_after(code)


def test_an_unknown_name_is_an_attribute_error():
    import sigprop

    with pytest.raises(AttributeError, match="no attribute 'predcit'"):
        _ = sigprop.predcit


def test_every_public_name_has_a_home():
    import sigprop

    assert set(sigprop.__all__) == set(sigprop._HOMES)


def test_python_m_sigprop_and_version():
    done = subprocess.run([sys.executable, "-m", "sigprop", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sigprop ")


def test_no_line_of_the_list_of_commands_is_cut_short():
    done = subprocess.run([sys.executable, "-m", "sigprop", "-h"], capture_output=True, text=True, check=True)
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_a_group_without_a_command_shows_its_help():
    done = subprocess.run(
        [sys.executable, "-m", "sigprop", "research", "sweep"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Commands:\n  run" in done.stderr
