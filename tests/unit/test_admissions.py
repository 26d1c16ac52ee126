"""Who is out by the broker's list of keys: each once, whoever said so, and nobody who may still be here."""

from __future__ import annotations

from pathlib import Path

from p2prl.core.access import MAX_ADMITTED, Access
from p2prl.net.keys import KeyPair
from p2prl.nodes.access_file import AccessFile, Stored, entries_of
from p2prl.nodes.admissions import Admissions
from p2prl.nodes.broker_file import Saved
from p2prl.nodes.wiring import BrokerConfig, Staff
from tests.unit.spool_kit import run_spec

_STAFF = Staff(*(word.ljust(40, "s") for word in ("owner", "trainer", "shard", "member")))


def _key(number: int) -> str:
    return f"{number:040}"


def _admissions(folder: Path, open_: bool) -> Admissions:
    config = BrokerConfig(
        run=run_spec(), run_name="r", host_name="h", keys=KeyPair("h" * 40, ""), staff=_STAFF, base_port=1, bind=["*"],
        shards=0, folder="", state=str(folder), open=open_,
    )  # fmt: skip
    return Admissions(config, Saved())


def _out(admissions: Admissions) -> list[str]:
    out, admissions.out = admissions.out, []
    return out


def test_who_is_removed_is_out_once(tmp_path: Path) -> None:
    for open_ in (False, True):
        admissions = _admissions(tmp_path / str(open_), open_)
        admissions.admit(_key(1), "one", "")
        admissions.remove(_key(1), "one", "by the owner")
        admissions.remove(_key(1), "one", "by the owner")
        admissions.remove(_key(2), "two", "by the owner")
        assert _out(admissions) == [_key(1), _key(2)]


def test_who_another_host_of_the_folder_removed_is_out_here(tmp_path: Path) -> None:
    for open_ in (False, True):
        folder = tmp_path / str(open_)
        here, other = _admissions(folder, open_), _admissions(folder, open_)
        here.admit(_key(1), "one", "")
        assert other.look()
        other.remove(_key(1), "one", "by the owner")
        other.remove(_key(2), "two", "by the owner")
        assert here.look()
        assert _out(here) == [_key(1), _key(2)]
        assert not here.look()
        other.remove(_key(3), "three", "by the owner")
        here.admit(_key(4), "four", "")  # this reads the file, too
        assert _out(here) == [_key(3)]


def test_an_open_host_keeps_whom_its_full_list_forgets(tmp_path: Path) -> None:
    access = Access()
    for number in range(MAX_ADMITTED):
        access.admit(_key(number), "x", "open", "", float(number))
    AccessFile(tmp_path).change(lambda stored: Stored(entries_of(access), []))
    admissions = _admissions(tmp_path, open_=True)
    admissions.admit(_key(MAX_ADMITTED), "new", "")
    assert admissions.access.standing(_key(0)) == "unknown"
    assert admissions.admits(_key(0))
    assert _out(admissions) == []
