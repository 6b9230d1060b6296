"""An oracle for predictions: the same model measured over fresh initializations, errors in standard errors."""

import math

import pytest
import torch

from sigprop.capture import build, predict
from sigprop.measurement import measure

COLUMNS = ("variance", "token_correlation", "grad_variance", "grad_second_moment")


@pytest.fixture
def agreement():
    def check(make, batch, loss=None, seeds=24, within=5.0, skip=(), training=False, width=96):
        """Every common site and parameter within so many standard errors; returns the prediction.

        Norms are predicted to first order in 1/width, so ten times its square is allowed beside.
        """
        torch.manual_seed(0)
        predicted = predict(build(lambda: make().train(training)), batch, loss=loss)
        measured = measure(None, batch, loss, build=lambda: make().train(training), seeds=seeds)
        compared = predicted.compare(measured)
        found = 0
        for item in compared.differences:
            if item.column not in COLUMNS or not item.standard_error > 0.0 or item.name.endswith(skip):
                continue
            if abs(item.reference) < 1e-15 or math.isnan(item.error):
                continue
            found += 1
            assert abs(item.error) <= within * item.standard_error + 10 / width**2, item
        assert found > 4
        return predicted

    return check
