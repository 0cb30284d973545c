"""ResNet-50 on ImageNet, as a workload of the distributed training harness."""
