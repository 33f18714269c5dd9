"""The table in docs/scaling.md follows from the inputs above it."""

from bench.capacity import PAGE, Demand, computed, inputs_of


def test_the_table_of_the_page_is_the_one_that_follows_from_its_inputs() -> None:
    page = PAGE.read_text()
    assert computed(page) == page, "run ./dev bench capacity --write"


def test_a_batch_holds_the_deltas_of_a_journal_gap() -> None:
    inputs = inputs_of(PAGE.read_text())
    few, many = Demand(inputs, 1), Demand(inputs, 100_000)
    assert few.batches == few.deltas, "each delta is written alone"
    longest_gap = 5 * inputs["journal_gap"]
    assert many.batches == many.workers / longest_gap, "batches of many responses are rarer"
    fewer = Demand({**inputs, "journal_gap": inputs["journal_gap"] * 4}, 100_000)
    assert fewer.server_cores("postgres") < many.server_cores("postgres")
