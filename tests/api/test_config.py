"""Settings: typed, near misses named, patched and restored, readable from the environment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fxjit import config
from fxjit.errors import ConfigError, FxjitError


def test_every_row_has_a_doc_a_type_and_a_variable():
    for row in config.describe():
        assert row.doc.endswith(".") or row.doc[-1] in "'\"", row.name
        assert row.env == "FXJIT_" + row.name.replace(".", "_").upper()
        assert row.type is not None


def test_the_settings_that_the_public_page_promises_are_there():
    for name in (
        "suppress_errors verbose disable recompile_limit cache_size_limit accumulated_recompile_limit "
        "fail_on_recompile_limit_hit error_on_recompile dynamic_shapes assume_static_by_default "
        "automatic_dynamic_shapes specialize_int specialize_float capture_scalar_outputs "
        "capture_dynamic_output_shape_ops trace_numpy capture_func_transforms guard_nn_modules optimize_ddp "
        "fallback_random repro_after repro_level verify_correctness debug_dir cache_dir num_threads "
        "compile_tensorless_frames allow_empty_graphs trace_unittest"
    ).split():
        assert hasattr(config, name), name
    assert hasattr(config.cpp, "compiler") and hasattr(config.cpp, "fast_math")
    assert hasattr(config.triton, "cudagraphs") and hasattr(config.triton, "max_autotune")


def test_assigning_and_the_alias():
    config.cache_size_limit = 3
    assert config.recompile_limit == 3 == config.cache_size_limit
    config.reset("recompile_limit")
    assert config.recompile_limit == 8


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (lambda: config.recompile_limt, "recompile_limit"),
        (lambda: setattr(config, "recompile_limt", 1), "recompile_limit"),
        (lambda: setattr(config, "recompile_limit", "1"), "must be int, not str"),
        (lambda: setattr(config, "recompile_limit", True), "must be int, not bool"),
        (lambda: setattr(config, "repro_after", "later"), "must be one of None, 'dynamo', 'aot'"),
        (lambda: setattr(config.cpp, "fastmath", True), "cpp.fast_math"),
        (lambda: config.cpp.fastmath, "cpp.fast_math"),
        (lambda: config.fast_math, "It is called 'cpp.fast_math'"),
        (lambda: config.patch(suppres_errors=True), "suppress_errors"),
        (lambda: config.patch(suppress_errors=1), "must be bool, not int"),
        (lambda: config.patch(3), "takes keywords, a dict, or a name and a value"),
        (lambda: config.reset("nothing_like_it"), "no setting 'nothing_like_it'"),
    ],
)
def test_a_wrong_name_or_type_raises_at_once_and_names_what_is_near(action, says):
    with pytest.raises(ConfigError, match=says) as caught:
        action()
    assert isinstance(caught.value, FxjitError)


def test_an_unknown_name_is_an_attribute_error_too():
    assert not hasattr(config, "no_such_setting")
    assert getattr(config, "no_such_setting", 5) == 5


def test_patch_as_a_context_manager_restores_also_after_an_exception():
    with pytest.raises(ZeroDivisionError), config.patch({"cpp.fast_math": True}, recompile_limit=1):
        assert config.cpp.fast_math and config.recompile_limit == 1
        1 / 0
    assert not config.cpp.fast_math and config.recompile_limit == 8


def test_patch_by_name_and_as_a_decorator():
    @config.patch("recompile_limit", 2)
    def limit() -> int:
        return config.recompile_limit

    assert limit() == 2 and config.recompile_limit == 8 and limit() == 2


def test_a_patch_can_be_nested_in_itself():
    patch = config.patch(recompile_limit=2)
    with patch:
        config.recompile_limit = 5
        with patch:
            assert config.recompile_limit == 2
        assert config.recompile_limit == 5
    assert config.recompile_limit == 8


def test_only_settings_that_code_depends_on_are_in_the_cache_key():
    before = config.cache_key()
    with config.patch(verbose=True):
        assert config.cache_key() == before
    with config.patch({"cpp.fast_math": True}):
        assert config.cache_key() != before


def test_listeners_hear_of_changes():
    heard = []
    config.on_change(lambda name, value: heard.append((name, value)))
    with config.patch(verbose=True):
        pass
    assert heard == [("verbose", True), ("verbose", False)]


def fresh(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=config.child_environment(**env), timeout=60)


def test_the_environment_sets_settings():
    code = "from fxjit import config; print(config.recompile_limit, config.cpp.fast_math, config.verbose, config.cache_dir)"
    done = fresh(code, FXJIT_RECOMPILE_LIMIT="3", FXJIT_CPP_FAST_MATH="1", FXJIT_VERBOSE="off", FXJIT_CACHE_DIR="/x y")
    assert done.stdout.split("\n")[0] == "3 True False /x y", done.stderr


def test_a_wrong_value_or_name_in_the_environment_is_said():
    done = fresh("import fxjit", FXJIT_RECOMPILE_LIMIT="many")
    assert done.returncode != 0 and "FXJIT_RECOMPILE_LIMIT='many': expected a number" in done.stderr
    done = fresh("import fxjit", FXJIT_VERBOSE="perhaps")
    assert "FXJIT_VERBOSE='perhaps': expected 1 or 0" in done.stderr
    done = fresh("import fxjit", FXJIT_RECOMPILE_LIMT="3")
    assert done.returncode == 0 and "Did you mean 'FXJIT_RECOMPILE_LIMIT'" in done.stderr


def test_every_setting_is_read_somewhere():
    source = Path(config.__file__).parent
    text = "".join(path.read_text() for path in source.rglob("*.py") if path.name not in ("config.py", "doctor.py"))
    unread = {name for name in config.SETTINGS if not re.search(rf"config\.{re.escape(name)}\b", text)}
    groups = {"cpp.compiler", "cpp.fast_math", "cpp.simd", "cpp.openmp", "cpp.require", "cpp.extra_flags"}
    groups |= {"triton.cudagraphs", "triton.max_autotune"}
    assert unread <= groups, sorted(unread - groups)
