"""The model benchmark: its counting, its rows, a small sweep for real, and out of memory as a result."""

from __future__ import annotations

import json

import pytest

from dist_mp.errors import UserError
from dist_mp.experiments.bench_model import Bench, System, make_row, run_bench
from dist_mp.experiments.model_report import KINDS, ratios
from dist_mp.experiments.model_step import Request, operation_kind, products_of, step_operations


def test_the_products_amount_to_the_usual_count():
    request = Request("fp32", layers=3, rows=8, units=32, length=5, vocabulary=100)
    total = sum(2 * p.m * p.k * p.n * p.count for p in products_of(request))
    assert total == step_operations(3, 8, 32, 5, 100) == 3 * 8 * 5 * (16 * 32 * 32 * 3 + 2 * 32 * 100)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("lstm_0/MatMul_3:_MklMatMul", "products"),
        ("output_1/BiasAdd:_MklNativeFusedMatMul", "products"),
        ("PyFunc_1:PyFunc", "exchange"),
        ("AssignSubVariableOp:AssignSubVariableOp", "update"),
        ("CpuExecutable::ExecuteAsyncOnStream", "fused loops"),
        ("Cast:Cast", "other operations"),
        ("ExecutorState::Process", None),
        ("EagerLocalExecute: __inference_update_2007", None),
        ("while:While", None),
    ],
)
def test_kinds_of_operations(event, kind):
    assert operation_kind(event) == kind


def test_rows_pool_rounds_and_compare_within_a_round():
    ours = [
        {"outcome": "measured", "seconds": [9.0, 1.0, 1.0], "peak_bytes": 5},
        {"outcome": "measured", "seconds": [2.0], "peak_bytes": 7},
    ]
    peer = [{"outcome": "measured", "seconds": [3.0]}, {"outcome": "measured", "seconds": [4.0]}]
    rows = [
        make_row(System("ours", "fp32", ()), 2, 4, 8, 300, ours),
        make_row(System("peer", "fp32", ()), 2, 4, 8, 300, peer),
        make_row(System("large", "fp32", ()), 2, 4, 8, 300, [ours[0], {"outcome": "out of memory"}]),
    ]
    assert (rows[0].seconds, rows[0].flops, rows[0].peak_bytes) == (1.5, 200.0, 7)
    assert ratios(rows, rows[0]) == {"peer": 2.5}
    assert rows[2].seconds is None and ratios(rows, rows[2]) == {}


def test_a_small_size_beside_keras_writes_json_and_plots(tmp_path):
    sizes = {"rows": (4,), "units": (16,), "length": 4, "vocabulary": 50}
    rows = run_bench(Bench(**sizes, precisions=("bf16",), steps=1, rounds=1, keras=True, out=tmp_path))
    assert [r.system for r in rows] == ["dist_mp bf16", "Keras fp32"]
    assert all(r.seconds for r in rows)
    assert set(rows[0].shares) == set(KINDS) and abs(sum(rows[0].shares.values()) - 1) < 0.01
    assert rows[0].tensor_bytes is not None and rows[1].tensor_bytes is None
    assert all(rows[0].shares[kind] > 0 for kind in ("products", "exchange", "update"))
    # At so small a size the softmax, timed alone, may take all that the fused loops took.
    assert rows[0].shares["gates"] >= 0 < rows[0].shares["gates"] + rows[0].shares["softmax"]
    content = json.loads((tmp_path / "result.json").read_text())
    assert len(content["rows"]) == 2 and content["settings"]["units"] == [16]
    assert {p.name for p in tmp_path.iterdir()} == {"result.json", "end_to_end.png", "products.png", "shares.png"}


def test_out_of_memory_is_a_result(capfd):
    bench = Bench(rows=(4096,), units=(512,), precisions=("fp32",), steps=1, rounds=2, memory_gib=2.0)
    (row,) = run_bench(bench)
    assert row.seconds is None
    assert "OOM" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precisions": ("fp8",)}, "unknown precision 'fp8': valid are fp32, bf16, fp16"),
        ({"units": ()}, "--units is empty"),
        ({"rows": (0,)}, "must be at least 1"),
    ],
)
def test_mistakes_are_said(change, message):
    with pytest.raises(UserError, match=message):
        run_bench(Bench(**change))


def test_a_missing_peer_is_said(tmp_path):
    with pytest.raises(UserError, match=r"no .*torch/bin/python; install torch"):
        run_bench(Bench(peers=tmp_path))
