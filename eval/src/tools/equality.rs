//! Checks that tools that are hidden from a caller do not change the answers to that caller's
//! searches.

use super::ours::IndexedTools;
use super::sets::{CatalogTool, ToolSet};
use super::tokens;

/// Asks each question of `sessions` twice: with every third tool hidden, and with every third tool
/// removed. Returns a sentence that says how many answers are equal.
pub fn measure(sessions: &ToolSet) -> String {
    let tools = &sessions.tools;
    let is_visible = |at: usize| !at.is_multiple_of(3);
    let mut hidden = IndexedTools::new(tools);
    hidden.view = hidden.index.view(is_visible);
    let visible = tools.iter().enumerate().filter(|(at, _)| is_visible(*at));
    let visible: Vec<CatalogTool> = visible.map(|(_, tool)| tool.clone()).collect();
    let removed = IndexedTools::new(&visible);
    let questions: Vec<&String> = sessions.tasks.iter().flat_map(|it| &it.questions).collect();
    let equal = questions.iter().filter(|question| {
        let answer = tokens::answer(tools, &hidden, question, 10);
        let again = tokens::answer(tools, &hidden, question, 10);
        answer == again && answer == tokens::answer(&visible, &removed, question, 10)
    });
    format!(
        "{} of {} answers stay the same, byte for byte, if a search is repeated. The answers \
         also stay the same if the tools that the caller may not see (here every third) are removed \
         from the catalog. Property tests repeat this check with random policies.\n",
        equal.count(),
        questions.len()
    )
}
