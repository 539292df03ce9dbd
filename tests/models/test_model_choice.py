"""Which model ``--model`` means, what is said where it means none, and dtypes that do not meet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import nn

from warmup.core.errors import ModelError
from warmup.models.inputs import naming_dtypes
from warmup.models.loading import Inputs, load_model

HEAD = """
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self, width=8):
            super().__init__()
            self.layer = nn.Linear(width, 4)

        def forward(self, x):
            return self.layer(x)

    class Large(Small):
        def __init__(self):
            super().__init__(16)
"""


@pytest.fixture(autouse=True)
def _own_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, and leave the modules and paths of this process as they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in [*sys.modules.items()]:
        if str(tmp_path) in str(getattr(module, "__file__", None)):
            del sys.modules[name]


def write(name: str, tail: str = "", head: str = HEAD) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(dedent(head) + dedent(tail), encoding="utf-8")
    return name


def test_one_of_several_classes_is_meant() -> None:
    """The value called model, else the class that example_inputs fits; the reason is kept.

    Where nothing says which class is meant, all names and the option are in the error.
    """
    named, inputs = "Large, called 'model' in {}", "def example_inputs(seqlen):\n    return "
    listed = r"defines Small, Large; name the model: --model {}:NAME"
    for number, (tail, said) in enumerate(
        (
            ("model = torch.compile(Large())", named),
            ("def model():\n    return Large()", named),
            (
                f"{inputs}torch.randn(seqlen, 16)",
                "Large, the only class in {} that takes example_inputs",
            ),
            ("", listed),
            (f"{inputs}torch.randn(seqlen, 3)", listed),
            ("model = 3", listed),
            (f"class Other(Small): pass\n{inputs}torch.randn(seqlen, 8)", "fits Small, Other"),
        )
    ):
        path = write(f"net{number}.py", tail)
        if said.startswith("Large"):
            model = load_model(path)
            assert model.module.layer.in_features == 16, tail  # type: ignore[union-attr]
            assert model.chosen == said.format(path), tail
        else:
            with pytest.raises(ModelError, match=said.format(path)):
                load_model(path)


def test_the_only_model_of_a_file_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single class, or instance where there is no class that can be made, needs no name.

    A file that reads the command line at the import sees no option of warmup.
    """
    monkeypatch.setattr(sys, "argv", ["warmup", "build", "--model", "net.py"])
    parse = "import argparse\nfrom torch import nn\nargparse.ArgumentParser().parse_args()\n"
    for number, body in enumerate(
        (
            "net = nn.Sequential(nn.Linear(8, 4))",
            "class Net(nn.Linear):\n    pass\nnet = Net(8, 4)",
            "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(8, 4)",
            "layer = nn.Linear(8, 4)\ncompiled = torch.compile(layer)\nalias = layer",
        )
    ):
        model = load_model(write(f"net{number}.py", body, parse + "import torch\n"))
        assert sum(each.numel() for each in model.module.parameters()) == 36, body
        assert model.chosen == "", body
    assert sys.argv == ["warmup", "build", "--model", "net.py"]


def test_a_module_is_looked_up_in_the_working_directory() -> None:
    write("parts/__init__.py", "", "")
    write("parts/net.py")
    assert load_model("parts.net:Large").name == "net.Large"


def test_what_is_no_model_has_a_remedy_or_its_cause() -> None:
    """Each wrong target has one line: what to write instead, or the cause and where it is."""
    write("net.py", "def make(width, depth): ...\ndef count(): return 3")
    write("parts/__init__.py", "", "")
    write("broken.py", "", "import helping\n")
    write("helping.py", "", "def f():\n    import absent_thing\nf()\n")
    write("syntax.py", "", "def (:\n")
    start = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n"
    write("failing.py", "", start + "        super().__init__()\n        {}['width']\n")
    for target, words in (
        ("net.py:make(64, 2)", 'write "def model(): return make(64, 2)" into the file'),
        ("parts.net:make(64)", 'return make(64)" into a file that imports make'),
        ("org/name", "hf download org/name --local-dir DIR, then --model hf:DIR"),
        ('net.py:make{"width": 2, "deep": 1}', "the function has no argument deep"),
        ('net.py:make{"width": 2}', "needs arguments (depth)"),
        ("net.py:make{width}", "the arguments are no JSON"),
        ("net.py:make[1]", "names no model"),
        ("net.py:make", 'return make(width=..., depth=...)" into the file, and give --model'),
        ("net.py:count", "the function returns int, no nn.Module"),
        ("broken.py", r"ModuleNotFoundError: No module named 'absent_thing', .*helping.py:2\)"),
        ("failing.py:Net", r"making the model failed \(KeyError: 'width', .*failing.py:5\)"),
        ("syntax.py", r"SyntaxError: .*, .*syntax.py:1\)"),
    ):
        pattern = words if "\\" in words else words.replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(ModelError, match=pattern) as refused:
            load_model(target)
        assert "\n" not in str(refused.value), target


def test_inputs_of_another_dtype_than_the_weights_get_a_remedy() -> None:
    """The error names both dtypes and the two options; a wrong size stays torch's error."""
    module = nn.Linear(8, 4, bias=False, dtype=torch.bfloat16)
    inputs = Inputs((torch.randn(2, 8),), {})
    with pytest.raises(ModelError) as refused, naming_dtypes(module, inputs):
        module(*inputs.args)
    assert str(refused.value) == (
        "the parameters of the model are bf16, and its input input is f32; cast both with "
        '--dtype bf16, or name the input: --input "input=[...]:bf16"'
    )
    assert isinstance(refused.value.__cause__, RuntimeError)
    wrong = Inputs((torch.randn(2, 9),), {})
    with pytest.raises(RuntimeError, match=r"shapes|dtype"), naming_dtypes(module, wrong):
        module(*wrong.args)
