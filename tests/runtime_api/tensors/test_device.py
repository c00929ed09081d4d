from __future__ import annotations

import pytest

from kernbench.errors import UsageError
from kernbench.runtime_api import RuntimeContext


@pytest.mark.adr("0149-D4")
def test_a_device_is_called_by_its_machines_name() -> None:
    with RuntimeContext("h100-sxm:2", ranks=2) as torch:
        x = torch.ones(2)
        assert str(x.device) == "h100-sxm:0"
        assert repr(x).endswith("device='h100-sxm:0')")
        for name in ("h100-sxm:1", "ahbm:1", "cuda:1", 1, torch.ones(2, device=1).device):
            assert str(torch.ones(2, device=name).device) == "h100-sxm:1"
            assert x.to(name).sip_id == 1
        for name in ("h100-sxm", "ahbm", "cuda"):
            assert torch.ones(2, device=name).sip_id == 0
        assert x.to("float16").dtype == torch.float16
        for wrong in ("a100:0", "h100-sxm:x", "cpu"):
            with pytest.raises(UsageError, match="'h100-sxm:N', 'cuda', 'cuda:N', but got"):
                torch.ones(2, device=wrong)
