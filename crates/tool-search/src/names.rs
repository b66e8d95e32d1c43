//! Names in questions and calls: exact, prefixed, or nearly right.

use crate::index::{CallerVisibleTools, ToolSearchIndex};

/// Longest tool name that is compared with others, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// Similarity from which a name counts as a misspelling of a tool's name, from 0 to 1.
const SIMILAR_MIN: f64 = 0.8;

/// Returns a tool's name without differences in separators and case.
fn fold(name: &str) -> String {
    let fold = |c: char| match c {
        '.' | '/' | '-' | ':' | ' ' => '_',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

/// Returns the tool name `name` without the prefixes that clients add: `mcp__SERVER__`, `SERVER:`
/// or `SERVER.`. Returns `None` if there is no such prefix.
pub fn strip_prefix(name: &str) -> Option<&str> {
    if let Some(rest) = name.strip_prefix("mcp__") {
        return rest.split_once("__").map(|(_, rest)| rest).filter(|rest| !rest.is_empty());
    }
    let (_, rest) = name.split_once(':').or_else(|| name.split_once('.'))?;
    (!rest.is_empty()).then_some(rest)
}

/// Returns how well the text `asked` names the tool with the id `id` and the name `name`: 0 is
/// best. `None` if `asked` does not name this tool.
pub(crate) fn name_rank(asked: &str, id: &str, name: &str) -> Option<u8> {
    if asked.len() > NAME_BYTES_MAX {
        return None;
    }
    let bare = strip_prefix(asked);
    let spellings = || [Some(asked), bare].into_iter().flatten().map(fold);
    let (id, name) = (fold(id), fold(name));
    if spellings().any(|asked| asked == id) {
        return Some(0);
    }
    // A single common word is a question, not a name.
    let is_name = asked.contains(['_', '.', '-', ':', '/']);
    if spellings().any(|asked| asked == name) {
        return is_name.then_some(1);
    }
    // Comparing letters is slow, and names of other lengths are not similar.
    let is_similar = |asked: &str, known: &str| {
        asked.len().abs_diff(known.len()) * 4 <= asked.len()
            && strsim::normalized_damerau_levenshtein(asked, known) >= SIMILAR_MIN
    };
    let similar = |asked: &String| is_similar(asked, &id) || is_similar(asked, &name);
    (is_name && spellings().any(|asked| similar(&asked))).then_some(2)
}

/// Returns the index positions of up to `count` visible tools whose names are nearest to `asked`.
pub fn nearest_names(
    index: &ToolSearchIndex,
    view: &CallerVisibleTools,
    asked: &str,
    count: usize,
) -> Vec<usize> {
    if asked.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let bare = fold(strip_prefix(asked).unwrap_or(asked));
    let asked = fold(asked);
    let seen = (0..index.len()).filter(|at| view.shows(*at));
    let mut near: Vec<(f64, usize)> = seen
        .map(|at| {
            let (id, name) = (fold(index.id(at)), fold(index.name(at)));
            let similarity = strsim::normalized_damerau_levenshtein;
            (similarity(&asked, &id).max(similarity(&bare, &name)), at)
        })
        .filter(|(similarity, _)| *similarity >= 0.4)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    near.into_iter().take(count).map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_a_client_adds_is_no_part_of_the_name() {
        for (name, bare) in [
            ("mcp__github__create_issue", Some("create_issue")),
            ("github:create_issue", Some("create_issue")),
            ("github.create_issue", Some("create_issue")),
            ("create_issue", None),
            ("mcp__github", None),
        ] {
            assert_eq!(strip_prefix(name), bare, "{name}");
        }
    }

    #[test]
    fn a_name_is_recognized_in_every_spelling_and_with_a_slip() {
        for asked in ["github_create_issue", "GitHub:create_issue", "mcp__github__create_issue"] {
            let rank = name_rank(asked, "github.create_issue", "create_issue");
            assert!(rank.is_some_and(|rank| rank <= 1), "{asked}");
        }
        let rank = |asked| name_rank(asked, "github.create_issue", "create_issue");
        assert_eq!(rank("create_isue"), Some(2));
        assert_eq!(rank("issue"), None);
        assert_eq!(rank("delete_file"), None);
    }
}
