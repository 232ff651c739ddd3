"""Published facts of GPUs, and the names that they are called by."""

from __future__ import annotations

import pytest

from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.gpus import device_id_of, gpus, listed, named
from conv_advisor.data.problem import DType
from conv_advisor.data.shipped import Shipped

H200 = "nvidia-h200"
H100 = "nvidia-h100-80gb-hbm3"


@pytest.mark.parametrize(
    ("name", "device_id"),
    [
        ("A100", "nvidia-a100-sxm4-80gb"),  # ambiguous names mean the first that the table gives them
        ("a100 40GB", "nvidia-a100-sxm4-40gb"),
        ("a100-pcie", "nvidia-a100-80gb-pcie"),
        ("h100", H100),
        ("H100 SXM", H100),
        ("h100 pcie", "nvidia-h100-pcie"),
        ("H100-NVL", "nvidia-h100-nvl"),
        ("NVIDIA H100 80GB HBM3", H100),
        (H100, H100),
        ("rtx 4090", "nvidia-geforce-rtx-4090"),
        ("RTX4090", "nvidia-geforce-rtx-4090"),
        ("GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "nvidia-geforce-rtx-3080-ti"),
        ("rtx_3080", "nvidia-geforce-rtx-3080"),
        ("V100", "tesla-v100-sxm2-16gb"),
        ("Tesla T4", "tesla-t4"),
        ("H200", H200),
        (" nvidia h200 ", H200),
        ("CPU", "cpu"),
    ],
)
def test_a_device_answers_to_every_name_that_people_have_for_it(name: str, device_id: str) -> None:
    assert device_id_of(name, ["cpu", H200]) == device_id


def test_what_is_known_here_comes_before_what_is_published() -> None:
    assert device_id_of("a100", ["my-a100", "a100"]) == "a100"
    assert device_id_of("RTX A2000", ["nvidia-rtx-a2000"]) == "nvidia-rtx-a2000", "of which nothing is published"


@pytest.mark.parametrize("name", ["", " ", "nvidia", "a1000000", "rtx 4091", "h999", "../a100x"])
def test_an_unknown_name_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(UnknownDevice) as caught:
        device_id_of(name, [H200])
    assert {H200, "a100", "rtx 4090"} <= set(caught.value.known)


def test_a_slip_is_told_what_was_probably_meant() -> None:
    with pytest.raises(UnknownDevice, match="unknown device 'rtx 4091'; did you mean 'rtx 4090'"):
        device_id_of("rtx 4091", [H200])


def test_no_two_gpus_share_a_name_and_each_is_listed_once() -> None:
    named = [name for gpu in gpus().values() for name in (gpu.name, *gpu.short)]
    assert [device_id_of(name, []) for name in named] == [
        gpu.id for gpu in gpus().values() for _ in (gpu.name, *gpu.short)
    ]
    names = listed([H200])
    assert names[0] == H200
    assert len(names) == len(set(names)) == len(gpus())


@pytest.mark.parametrize("gpu", gpus().values(), ids=lambda gpu: gpu.id)
def test_facts_agree_with_each_other_and_name_their_source(gpu) -> None:
    lanes = 64 if gpu.capability in ("7.0", "7.5", "8.0") else 128
    assert gpu.fp32_tflops == pytest.approx(2 * lanes * gpu.processors * gpu.boost_mhz / 1e6, rel=0.015)
    assert gpu.fp32_tflops <= gpu.tflops(DType.TF32) <= gpu.tflops(DType.FLOAT16)
    assert gpu.tflops(DType.FLOAT32) == gpu.fp32_tflops
    assert gpu.tflops(DType.BFLOAT16) == (gpu.fp16_tflops if float(gpu.capability) >= 8 else gpu.fp32_tflops)
    assert any(word in gpu.source for word in ("whitepaper", "datasheet", "brief"))
    device = gpu.device
    assert (device.id, device.kind, device.capability) == (gpu.id, "cuda", gpu.capability)
    assert 2**15 < device.shared_memory_per_block_bytes < 2**18
    assert device.memory_bytes > 2**32


def test_facts_agree_with_what_a_device_said_of_itself() -> None:
    (measured,) = (device for device in Shipped().devices() if device.id == H200)
    published = gpus()[H200].device
    for name in ("name", "capability", "processors", "l2_bytes", "shared_memory_per_block_bytes", "max_clock_mhz"):
        assert getattr(published, name) == getattr(measured, name), name


def test_among_known_devices_a_name_is_that_of_none_but_them() -> None:
    known = {H200: gpus()[H200].device}
    assert named("H200", known) is known[H200]
    for name in ("a100", "nowhere"):  # the first is a GPU, which was not measured
        with pytest.raises(UnknownDevice, match=f"^unknown device '{name}'; known: {H200}$"):
            named(name, known)
