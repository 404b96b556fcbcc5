import jax

PEAKS = {
    'NVIDIA B200': 2.25e15,
    'NVIDIA H200': 989e12,
    'NVIDIA H100 80GB HBM3': 989e12,
    'NVIDIA H100 PCIe': 756e12,
    'NVIDIA GH200 480GB': 989e12,
    'NVIDIA A100-SXM4-40GB': 312e12,
    'NVIDIA A100-SXM4-80GB': 312e12,
    'NVIDIA A100-PCIE-40GB': 312e12,
    'NVIDIA A100 80GB PCIe': 312e12,
    'NVIDIA L4': 121e12,
    'NVIDIA A10G': 70e12,
    'Tesla V100-SXM2-16GB': 125e12,
    'Tesla T4': 65e12,
    'TPU v3': 61.5e12,
    'TPU v4': 275e12,
    'TPU v5 lite': 197e12,
    'TPU v5e': 197e12,
    'TPU v5': 459e12,
    'TPU v5p': 459e12,
    'TPU v6 lite': 918e12,
    'TPU v6e': 918e12,
}
"""Dense operations per second in bfloat16 (or float16, without bfloat16), by the name of the device
in JAX. From the vendors' data sheets, without sparsity. A TPU v3 device is one of two cores."""


def utilization(flops_per_second: float, devices: list[jax.Device]) -> float | None:
    """Model FLOPs utilization (Chowdhery et al. 2022, appendix B); None for unknown devices.

    Args:
        flops_per_second: operations of training, forward and backward pass, without recomputation:
            tokens per second times `flops_per_token` of `trainer.program.costs`.
        devices: devices of the mesh. Their peak is that of bfloat16, for comparable figures, even
            if the model computes in another dtype.
    """
    peak = PEAKS.get(devices[0].device_kind)
    return None if peak is None else flops_per_second / (peak * len(devices))
