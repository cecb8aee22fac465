"""The recorded jobs that tests of laws read, by name, whatever else lies on the disk."""

from __future__ import annotations

from pathlib import Path

from conftest import REPO, SHARED, THOROUGH

_EXAMPLES = {
    "lenet": "worker_?/0/bps_trace_final.json.gz",
    "lenet-100mbit": "worker_?/0/bps_trace_final.json.gz",
    "mlp-raw": "worker_0/0/[cist]*[mop].json",  # comm, io, step, temp
}

#: A job's directory below `SHARED`, and the trace files in it, for each run of the suite.
_FEW = {
    "byteps/master_torch_cnn_2w1s": "worker_0/0/*.json",
    "byteps/master_torch_truncated": "worker_0/0/*.json",
    "kineto/gpu-hta-2of128/trace": "sampled_rank-0.json.gz",
    "kineto/gpu-hta-compare-tiny/base": "*.json.gz",
    "kineto/gpu-hta-simple-add-nosteps": "*.json.gz",
    "kineto/gpu-tracelens-bert-h100-vs-mi300/h100": "*.json.gz",
    "kineto/gpu-tracelens-sglang-decode-mi300": "*.json.gz",
    "horovod/2ranks-killed/trace": "timeline.json",
    "horovod/2ranks-slow-rank1/trace": "timeline.json",
    "composer/ws2/trace": "ep0-ba7-rank0.json",
    "dasf/one-host-2workers/trace": "*.msgpack",
}

#: Those that `make fuzz` reads as well.
_MORE = {
    "byteps/fork_lenet_straggler": "worker_0/0/*.json",
    **dict.fromkeys((
        "kineto/edge-rank-missing", "kineto/gpu-hta-amd-mi250", "kineto/gpu-hta-critical-simple_add/trace",
        "kineto/gpu-hta-triton", "kineto/accel-mtia-inference", "kineto/ddp2-gloo-base/trace",
        "kineto/ddp2-gloo-key-averages/trace", "kineto/ddp2-gloo-slow-rank1/trace",
        "kineto/ddp2-gloo-two-cycles/trace", "kineto/ddp4-gloo-base/trace", "kineto/edge-cpu-only-rank0",
        "kineto/edge-no-distributed-info", "kineto/gpu-hta-compare-tiny/test",
        "kineto/gpu-hta-compare/control", "kineto/gpu-hta-compare/test",
        "kineto/gpu-hta-nccl-rank0of2/trace", "kineto/gpu-hta-ns-resolution/trace",
        "kineto/gpu-hta-rank0of16/trace", "kineto/gpu-hta-rank1of2-memory/trace",
        "kineto/gpu-kineto-autograd-api-old", "kineto/gpu-kineto-old-list/num_workers_0",
        "kineto/gpu-kineto-old-list/num_workers_4", "kineto/gpu-kineto-v1.9/num_workers_0",
        "kineto/gpu-kineto-v1.9/num_workers_4", "kineto/gpu-param-resnet",
        "kineto/gpu-tracelens-bert-h100-vs-mi300/mi300", "kineto/gpu-tracelens-ddp-mi300-rank0of8/trace",
        "kineto/gpu-tracelens-qwen-h100-vs-mi300/h100", "kineto/gpu-tracelens-qwen-h100-vs-mi300/mi300",
        "kineto/gpu-tracelens-resnet-ckpt-mi300-rank0of8", "kineto/gpu-tracelens-timesformer-h100",
        "kineto/gpu-tracelens-xdit-flux-mi300",
    ), "*.json.gz"),
    "kineto/gpu-param-dlrm-8ranks/trace": "worker0*.json.gz",
    "horovod/2ranks-cycles/trace": "timeline.json",
    "horovod/2ranks-base/trace": "timeline.json",
    "composer/ws2-slow-rank1/trace": "ep0-ba7-rank0.json",
    **dict.fromkeys((
        "dasf/two-hosts-4workers/trace", "dasf/gpu-metrics/trace", "dasf/dask2024-tuple-keys/trace",
    ), "*.msgpack"),
    "pipeline/straggler-ST": "rank0.pt.trace.json.gz",
    "byteps/fork_lenet_2w2g": "worker_*/[01]/*.json",
    **dict.fromkeys((
        "byteps/fork_lenet_base", "byteps/fork_lenet_slownet", "byteps/fork_lenet_stock_mxnet",
        "byteps/fork_mlp_2w2s_pcap", "byteps/fork_resnet50_2w1s", "byteps/master_mxnet_mlp_2w2s_pcap",
    ), "worker_*/0/*.json"),
    "composer/ws1-torch/trace": "ep0-*.json",
    "composer/ws2-torch/trace": "ep0-*.json",
    "pipeline/straggler-AR": "*.pt.trace.json.gz",
}  # fmt: skip

#: Files of programs that are none of the systems, each a trace of its own.
_PLAIN = (
    "catapult/async_begin_end.json", "catapult/flow_simple.json", "catapult/instance_counters.json",
    "catapult/instant_events.json", "catapult/main_thread_has_unclosed_slices.json",
    "catapult/nestable_async.json", "catapult/simple_trace.json", "catapult/simple_trace_gz.gz",
    "catapult/trivial_trace.json", "cmake/cmake_trace.json", "node/node_trace.json", "viztracer/viz.json.gz",
    "viztracer/viz_small.json",
)  # fmt: skip


def jobs(*systems: str) -> list[Path]:
    """List the directories of the recorded jobs that are here, of some systems or of all."""
    below = [SHARED / name for name in _named() if not systems or name.partition("/")[0] in systems]
    examples = [REPO / "examples" / name for name in _EXAMPLES] if not systems or "byteps" in systems else []
    return [*examples, *(path for path in below if path.is_dir())]


def files(*systems: str) -> list[Path]:
    """List the trace files of recorded jobs; in the suite one rank of each job."""
    found = [
        path
        for name, pattern in _named().items()
        if not systems or name.partition("/")[0] in systems
        for path in sorted((SHARED / name).glob(pattern))
    ]
    if systems:
        return found
    examples = REPO / "examples"
    own = [path for name, glob in _EXAMPLES.items() for path in sorted((examples / name).glob(glob))]
    plain = [path for name in _PLAIN if (path := SHARED / "generic" / name).exists()]
    return [*own, *plain, *found]


def whole_files() -> list[Path]:
    """List the trace files that a plain JSON decoder reads."""
    return [path for path in files() if path.suffix != ".msgpack" and "truncated" not in str(path)]


def _named() -> dict[str, str]:
    return _FEW | _MORE if THOROUGH else _FEW
