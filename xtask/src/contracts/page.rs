//! Renders the reference page that lists the tests of each contract requirement.

use std::fmt::Write as _;

use super::TestedRequirement;
use super::rows::RequirementContract;

/// Returns the text of the reference page about the five dialect contracts.
pub(super) fn render(tested_rows: &[TestedRequirement]) -> String {
    let mut page = String::from(
        "# The five contracts, requirement by requirement\n\n\
         <!-- Written by `cargo xtask contracts`; edit tests/contracts/rows.tsv or the tests. -->\n\n\
         Each row is a requirement of one of the five contracts. Each contract has its own dialect. \
         In the column *level*, M means must, S means should and O means may. N marks a \
         requirement about a tool of another language, and the row names the replacement in \
         toolgate. The tests run against the real binary. `cargo xtask contracts` writes this page \
         only if all tests in the tables pass.\n",
    );
    for seed in RequirementContract::ALL {
        let rows: Vec<&TestedRequirement> =
            tested_rows.iter().filter(|tested| tested.row.seed == seed).collect();
        let name = seed.name();
        let title = seed.title();
        let _ = write!(
            page,
            "\n## {title}: {name}, {} rows\n\n| row | level | requirement | tests |\n|---|---|---|---|\n",
            rows.len()
        );
        for TestedRequirement { row, tests } in rows {
            let mut shown_by: Vec<String> = tests.iter().map(|test| test.sentence()).collect();
            if row.is_whole_seed() {
                shown_by.push("every other row of this table".to_owned());
            }
            let here = row.here.as_ref().map(|here| format!("; here: {here}")).unwrap_or_default();
            let _ = writeln!(
                page,
                "| {} | {} | {}{} | {} |",
                row.id,
                row.level,
                cell(&row.requirement),
                cell(&here),
                shown_by.join("; ")
            );
        }
    }
    page
}

/// Escapes `text` for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
