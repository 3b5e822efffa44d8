"""Operations and bytes of operators, the peaks of devices, and the share of the peak that a step achieved."""
