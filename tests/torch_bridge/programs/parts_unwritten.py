"""Operations that write a part of uninitialized memory, and others that read it: right and wrong.

python parts_unwritten.py FILE writes the errors that each function has come to.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kernbench.errors import DataRaceError, UninitializedReadError

D = torch.device("cuda")
MASK = torch.tensor([True, False, True, False], device=D)


def empty(*size: int) -> Tensor:
    return torch.empty(size or (4,), device=D)


def places(*values: int) -> Tensor:
    return torch.tensor(values, device=D)


def ones(*size: int) -> Tensor:
    return torch.ones(size, device=D)


def wrong_masked_fill() -> Tensor:
    x = empty()
    x.masked_fill_(MASK, 1.0)
    return x + 1


def right_masked_fill_read_written() -> Tensor:
    x = empty()
    x.masked_fill_(MASK, 1.0)
    return x[::2] + 1


def right_masked_fill_both() -> Tensor:
    x = empty()
    x.masked_fill_(MASK, 1.0)
    x.masked_fill_(~MASK, 2.0)
    return x + 1


def wrong_put() -> Tensor:
    x = empty()
    x[MASK] = 1.0
    return x + 1


def right_put() -> Tensor:
    x = empty()
    x[MASK] = 1.0
    x[~MASK] = 2.0
    return x + 1


def wrong_put_idx() -> Tensor:
    x = empty()
    x[places(0, 1)] = 1.0
    return x + 1


def right_put_idx() -> Tensor:
    x = empty()
    x[places(0, 1)] = 1.0
    return x[:2] + 1


def right_put_idx_all() -> Tensor:
    x = empty()
    x[places(3, 1, 2, 0)] = ones(4)
    return x + 1


def wrong_mscatter() -> Tensor:
    x = empty()
    x.masked_scatter_(MASK, ones(4))
    return x.sum()


def wrong_scatter() -> Tensor:
    x = empty(2, 4)
    x.scatter_(1, torch.tensor([[0], [1]], device=D), 1.0)
    return x.sum()


def right_scatter() -> Tensor:
    x = empty(2, 4)
    x.scatter_(1, torch.arange(4, device=D).expand(2, 4), 1.0)
    return x.sum()


def wrong_scatter_src() -> Tensor:
    x = empty(2, 4)
    x.scatter_(1, torch.tensor([[0], [1]], device=D), ones(2, 1))
    return x.sum()


def wrong_index_copy() -> Tensor:
    x = empty(4, 2)
    x.index_copy_(0, places(0, 2), ones(2, 2))
    return x.sum()


def right_index_copy() -> Tensor:
    x = empty(4, 2)
    x.index_copy_(0, places(0, 2, 1, 3), ones(4, 2))
    return x.sum()


def wrong_index_fill() -> Tensor:
    x = empty(4, 2)
    x.index_fill_(1, places(0), 1.0)
    return x.sum()


def wrong_put_by_method() -> Tensor:
    x = empty()
    x.put_(places(0), ones(1))
    return x.sum()


def wrong_where() -> Tensor:
    x = torch.where(MASK, ones(4), empty())
    return x.sum()


def right_where() -> Tensor:
    x = torch.where(MASK, ones(4), torch.where(~MASK, ones(4), empty()))
    return x[::1].sum()


def right_where_second() -> Tensor:
    a = empty()
    a[::2] = 1
    x = torch.where(MASK, a, ones(4))
    return x.sum()


def right_where_out() -> Tensor:
    x = empty()
    torch.where(MASK, ones(4), torch.zeros(4, device=D), out=x)
    return x.sum()


def wrong_cat() -> Tensor:
    x = torch.cat([ones(2), empty(2)])
    return x.sum()


def right_cat() -> Tensor:
    x = torch.cat([ones(2), empty(2)])
    return x[:2].sum()


def wrong_gather() -> Tensor:
    x = empty()
    x[:2] = 1
    return x.gather(0, places(0, 3)).sum()


def right_gather() -> Tensor:
    x = empty()
    x[:2] = 1
    return x.gather(0, places(0, 1)).sum()


def wrong_index() -> Tensor:
    x = empty()
    x[:2] = 1
    return x[places(0, 3)].sum()


def right_index() -> Tensor:
    x = empty()
    x[:2] = 1
    return x[places(0, 1)].sum()


def wrong_emb() -> Tensor:
    w = empty(4, 2)
    w[:2] = 1
    return F.embedding(places(0, 3), w).sum()


def right_emb() -> Tensor:
    w = empty(4, 2)
    w[:2] = 1
    return F.embedding(places(0, 1), w).sum()


def wrong_view_copy() -> Tensor:
    x = empty(4, 4)
    x[:2].copy_(ones(2, 4))
    return x.sum()


def right_view_copy() -> Tensor:
    x = empty(4, 4)
    x[:2].copy_(ones(2, 4))
    return x[:2].sum()


def wrong_tcopy() -> Tensor:
    x = empty(4, 4)
    x[:, :2] = 1
    return x.t().contiguous().sum()


def right_tcopy() -> Tensor:
    x = empty(4, 4)
    x[:, :2] = 1
    return x.t().contiguous()[:2].sum()


def right_add_out() -> Tensor:
    x = empty(4, 4)
    torch.add(ones(4, 4), 1, out=x)
    return x.sum()


def wrong_add_out_part() -> Tensor:
    x = empty(4, 4)
    torch.add(ones(2, 4), 1, out=x[:2])
    return x.sum()


def wrong_half() -> Tensor:
    x = empty()
    x[:2] = 1
    return x.half().sum()


def right_half() -> Tensor:
    x = empty()
    x[:2] = 1
    return x.half()[:2].sum()


def wrong_clonem() -> Tensor:
    x = empty()
    x.masked_fill_(MASK, 1.0)
    return x.clone().sum()


def right_clonem() -> Tensor:
    x = empty()
    x.masked_fill_(MASK, 1.0)
    return x.clone()[::2].sum()


def right_mselect() -> Tensor:
    x = empty()
    x.masked_fill_(MASK, 1.0)
    return x.masked_select(MASK).sum()


def wrong_mselect() -> Tensor:
    x = empty()
    x.masked_fill_(MASK, 1.0)
    return x.masked_select(~MASK).sum()


def wrong_pad() -> Tensor:
    x = empty()
    x[:2] = 1
    return F.pad(x, (1, 1)).sum()


def right_pad() -> Tensor:
    x = empty()
    x[:2] = 1
    return F.pad(x, (1, 1))[:3].sum()


def right_mf_out() -> Tensor:
    x = empty()
    x[::2] = 1
    return x.masked_fill(~MASK, 0.0).sum()


def wrong_mf_out() -> Tensor:
    x = empty()
    return x.masked_fill(MASK, 0.0).sum()


def right_tril() -> Tensor:
    x = empty(4, 4)
    x[2:] = 1
    x[:2, :2] = 1
    return x.tril().sum()


def wrong_tril() -> Tensor:
    x = empty(4, 4)
    x[2:] = 1
    return x.tril().sum()


def right_u8() -> Tensor:
    x = torch.empty(4, dtype=torch.uint8, device=D)
    x.masked_fill_(MASK, 165)
    return x[::2].sum()


def wrong_boolm() -> Tensor:
    x = torch.empty(4, dtype=torch.bool, device=D)
    x[MASK] = False
    return x.any()


def right_boolm() -> Tensor:
    x = torch.empty(4, dtype=torch.bool, device=D)
    x[MASK] = False
    return x[MASK].any()


def right_conjugate_to_host() -> Tensor:
    numbers = torch.fft.fft(ones(4)).conj()
    return torch.view_as_real(numbers.to("cpu").resolve_conj()) + 1


def outcome(case: Callable[[], Tensor]) -> str | None:
    try:
        case()
    except (DataRaceError, UninitializedReadError) as error:
        return type(error).__name__
    return None


def main() -> None:
    cases = {
        name: item for name, item in globals().items() if name.startswith(("right_", "wrong_"))
    }
    Path(sys.argv[1]).write_text(json.dumps({name: outcome(item) for name, item in cases.items()}))


if __name__ == "__main__":
    main()
