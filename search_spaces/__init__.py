"""Experiments to run, to search over and to copy from. `--exp=lm.StdlibTunable` names one."""
