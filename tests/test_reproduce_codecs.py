"""reproduce codecs: every way to send trains, and the tables say what was sent."""

from fedbudget.build import build
from fedbudget.reproduce import codecs
from fedbudget.tables import Train

SMALL = ("data.source=topics", "data.clients=6", "train.cohort=3", "train.batch=2")


def cells(sheet):
    rows = [line[1:-1].split(" | ") for line in sheet.splitlines() if line.startswith("| ")][1:]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def test_each_way_to_send_is_trained_once_and_said_with_its_bytes(tmp_path, capsys):
    wanted = ("raw32", "eden2", "topk1%+dgc", "eden2+error+skip2.5", "eden2, int8 down")
    ways = [case for case in codecs.CODECS if case.name in wanted]
    few = {"codecs": ways, "servers": codecs.SERVERS[:2], "steps": codecs.STEP_SIZES[:1]}
    longer = [*SMALL, "rounds=5"]
    lines = codecs.run(tmp_path, quick=True, overrides=longer, **few)
    assert (tmp_path / "codecs.md").read_text() == "\n".join(lines)
    assert (tmp_path / "codecs.png").stat().st_size > 5000
    sent = cells(lines[0])
    assert list(sent) == [case.name for case in ways]
    share = {name: float(row[3].rstrip("%")) for name, row in sent.items()}
    assert share["raw32"] == 100
    assert 5 < share["eden2"] < 9  # 2 bits of 32, and a frame
    assert share["topk1%+dgc"] < share["eden2"]
    assert share["eden2+error+skip2.5"] < share["eden2"]
    assert sent["eden2+error+skip2.5"][5].endswith("%")
    down = {name: float(row[4].split()[0]) for name, row in sent.items()}
    assert down["eden2, int8 down"] < 0.3 * down["eden2"] == 0.3 * down["raw32"]
    servers = cells(lines[1])
    assert set(servers) == {"mean", "momentum"}
    for row in servers.values():
        tried = [float(one.split(": ")[1]) for one in row[3].split(", ")]
        assert len(tried) == 3
        assert float(row[1]) == min(tried)
    capsys.readouterr()
    assert codecs.run(tmp_path, quick=True, overrides=longer, **few) == lines
    assert "round 1/5" not in capsys.readouterr().out


def test_all_cases_can_be_built_and_have_names_of_their_own(tmp_path):
    bench = codecs.Bench(tmp_path, 1, ["data.source=topics"])
    every = [*codecs.CODECS, *codecs.SERVERS]
    assert len({case.name for case in every}) == len(every)
    for case in every:
        build(bench.config(case, case.trials[0], 0))


def test_all_server_optimisers_are_compared():
    known = Train.model_fields["server"].annotation.__args__
    assert [case.name for case in codecs.SERVERS] == list(known)
