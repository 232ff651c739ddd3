"""Tokens: made once, kept as hashes, found in constant time, and taken away while the service runs."""

from __future__ import annotations

import hmac
import logging
import os
from pathlib import Path

import pytest

from conv_advisor.app.guard import tokens
from conv_advisor.app.guard.tokens import LOOK_AGAIN_S, MAX_TOKENS, PREFIX, Keyring, entry_of, make_token
from conv_advisor.app.wire.caller import Caller, Scope
from conv_advisor.data.errors import InvalidInput


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_token_has_256_bits_that_no_other_has() -> None:
    made = {make_token() for _ in range(1000)}
    assert len(made) == 1000
    assert all(token.startswith(PREFIX) and len(token) == len(PREFIX) + 43 for token in made)


def test_a_token_is_found_by_what_is_kept_of_it_which_is_not_the_token() -> None:
    token = make_token()
    line = entry_of("grafana", [Scope.READ, Scope.MEASURE], token)
    assert token.removeprefix(PREFIX) not in line
    keyring = Keyring(line)
    assert keyring.find(token) == Caller("grafana", frozenset((Scope.READ, Scope.MEASURE)))
    for other in ("", token[:-1], token + "x", token.lower(), line.split()[2], make_token(), "\udcff"):
        assert keyring.find(other) is None


def test_every_token_is_compared_with_in_constant_time_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [make_token() for _ in range(5)]
    keyring = Keyring(";".join(entry_of(f"t{place}", [Scope.READ], token) for place, token in enumerate(made)))
    compared: list[int] = []
    whole = hmac.compare_digest
    monkeypatch.setattr(tokens.hmac, "compare_digest", lambda a, b: (compared.append(len(a)), whole(a, b))[1])
    for shown in (*made, make_token(), ""):
        compared.clear()
        keyring.find(shown)
        assert compared == [32] * 5


def test_a_file_and_the_setting_count_together(tmp_path: Path) -> None:
    given, filed = make_token(), make_token()
    path = tmp_path / "tokens"
    path.write_text(f"# who may scrape\n\n{entry_of('prometheus', [Scope.READ], filed)}\n")
    keyring = Keyring(entry_of("ci", [Scope.MEASURE], given), path)
    assert len(keyring) == 2
    assert (keyring.find(given).name, keyring.find(filed).name) == ("ci", "prometheus")


def test_a_token_that_leaves_the_file_is_refused_soon_and_one_that_comes_is_let_in(tmp_path: Path) -> None:
    clock, old, new = Clock(), make_token(), make_token()
    path = tmp_path / "tokens"
    path.write_text(entry_of("old", [Scope.READ], old))
    keyring = Keyring(path=path, clock=clock)
    assert keyring.find(old)
    path.write_text(entry_of("newer", [Scope.READ], new))
    clock.now += LOOK_AGAIN_S
    assert keyring.find(old) is None
    assert keyring.find(new).name == "newer"


def test_a_file_that_breaks_leaves_everything_as_it_was_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, token = Clock(), make_token()
    path = tmp_path / "tokens"
    path.write_text(entry_of("ops", [Scope.READ], token))
    keyring = Keyring(path=path, clock=clock)
    assert keyring.problem() is None
    for said in (f"ops read {token}", f"other read {token}", None):
        if said is None:
            path.chmod(0o666)
        else:
            path.write_text(said)
        clock.now += LOOK_AGAIN_S
        with caplog.at_level(logging.DEBUG):
            assert keyring.find(token).name == "ops"
        assert keyring.problem()
    assert caplog.text.count("1 tokens of the file count") == 2, "once for each way in which it is wrong"
    assert token not in caplog.text + str(keyring.problem())
    path.chmod(0o600)
    path.write_text(entry_of("ops", [Scope.READ], token))
    clock.now += LOOK_AGAIN_S
    assert keyring.find(token)
    assert keyring.problem() is None


def test_a_file_that_is_gone_takes_its_tokens_along(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, given, token = Clock(), make_token(), make_token()
    path = tmp_path / "tokens"
    line = entry_of("ops", [Scope.READ], token)
    path.write_text(line)
    keyring = Keyring(entry_of("ci", [Scope.READ], given), path, clock)
    assert keyring.find(token)
    path.unlink()
    clock.now += LOOK_AGAIN_S
    assert keyring.find(token) is None
    assert keyring.find(given).name == "ci", "those of the setting stay"
    assert "is there" in str(keyring.problem())
    assert "0 tokens of the file count" in caplog.text
    path.write_text(line)
    clock.now += LOOK_AGAIN_S
    assert keyring.find(token)
    assert keyring.problem() is None


@pytest.mark.parametrize(
    "line",
    [
        "{token}",
        "ops read {token}",
        "ops {token} read",
        "ops read sha256:{token}",
        "{token} read",
        "ops read,write {digest}",
    ],
)
def test_a_line_that_is_no_entry_is_refused_without_being_shown(line: str) -> None:
    token = make_token()
    digest = entry_of("x", [Scope.READ], token).split()[2]
    with pytest.raises(InvalidInput, match=r"^CONV_ADVISOR_TOKENS, line 1 is ") as caught:
        Keyring(line.format(token=token, digest=digest))
    assert token not in str(caught.value)


def test_names_are_not_given_twice_and_tokens_not_without_end() -> None:
    with pytest.raises(InvalidInput, match="each of a name of its own"):
        Keyring(";".join(entry_of("same", [Scope.READ], make_token()) for _ in range(2)))
    with pytest.raises(InvalidInput, match=f"at most {MAX_TOKENS}"):
        Keyring(";".join(entry_of(f"t{each}", [Scope.READ], make_token()) for each in range(MAX_TOKENS + 1)))


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "line\nbreak", "#comment!"])
def test_a_name_that_a_line_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="1 to 64 letters"):
        entry_of(name, [Scope.READ], make_token())


def test_a_file_that_everybody_may_write_or_nobody_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(InvalidInput, match="a file that can be read"):
        Keyring(path=path)
    path.write_text(entry_of("ops", [Scope.READ], make_token()))
    path.chmod(0o666)
    with pytest.raises(InvalidInput, match="not everybody may write"):
        Keyring(path=path)
    path.chmod(0o600)
    path.write_bytes(os.urandom(64) + b"\xff")
    with pytest.raises(InvalidInput, match="a file of text"):
        Keyring(path=path)
