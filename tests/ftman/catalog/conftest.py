from __future__ import annotations

from pathlib import Path

import pytest

from ftman.catalog.catalog import Catalog
from tests.ftman.catalog.samples import catalog_in


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_in(tmp_path)
