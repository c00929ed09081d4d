# Correct kernels, 29 with Triton 3.9 and 31 before, and --check says nothing of any.
# run: python {file}
# expect: ^(29|31) silent of \1$

import contextlib
import io
import warnings

from correct_kernels import C

import kernbench

silent = 0
for name, case in C.items():
    said = io.StringIO()
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(said):
            warnings.simplefilter("always")
            ranks = getattr(case, "ranks", 1)
            with kernbench.RuntimeContext(machine="ahbm", ranks=ranks, check=True) as t:
                case(t)
                t.ahbm.synchronize()
        result = [str(item.message) for item in caught] + said.getvalue().splitlines()
    except (kernbench.KernbenchError, BaseExceptionGroup) as error:
        result = [repr(error)]
    silent += not result
    if result:
        print(name, result)
print(f"{silent} silent of {len(C)}")
