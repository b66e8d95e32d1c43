//! Finds and ranks known names that resemble a typed text.

/// Longest text whose similarity to known names is computed, in characters. The client chooses the
/// length, and a comparison takes time in proportion to it.
const CHARS_MAX: usize = 200;

/// Returns the most similar of `names`, if its Jaro-Winkler similarity to `typed` is above 0.75.
pub(crate) fn nearest<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    if typed.len() > CHARS_MAX {
        return None;
    }
    let similarity = |name: &str| strsim::jaro_winkler(&typed.to_lowercase(), &name.to_lowercase());
    let best = names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) > 0.75).then_some(best)
}

/// Returns the `values` that may complete `typed`, best first: values that start with `typed`,
/// values with a word that starts with `typed`, values that contain `typed`, and values with the
/// letters of `typed` in the same order.
pub(crate) fn rank_completions(typed: &str, values: Vec<String>) -> Vec<String> {
    let typed: String = typed.to_lowercase().chars().take(CHARS_MAX).collect();
    let ranked = values.into_iter().filter_map(|value| {
        let rank = completion_rank(&typed, &value.to_lowercase())?;
        Some((rank, value.len(), value))
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort();
    ranked.dedup();
    ranked.into_iter().map(|(_, _, value)| value).collect()
}

/// Returns the rank of `value` as a completion of `typed`, or `None` if `value` cannot complete the
/// text. A lower rank is better.
fn completion_rank(typed: &str, value: &str) -> Option<u8> {
    let is_break = |c: char| !c.is_alphanumeric();
    if value.starts_with(typed) {
        return Some(0);
    }
    if value.split(is_break).any(|part| part.starts_with(typed)) {
        return Some(1);
    }
    if value.contains(typed) {
        return Some(2);
    }
    let mut letters = value.chars();
    typed.chars().all(|wanted| letters.any(|letter| letter == wanted)).then_some(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_rank_before_substrings_and_those_before_scattered_letters() {
        let all = ["lib/parse.rs", "sparse.rs", "paris", "p/a/r", "nothing"].map(str::to_owned);
        assert_eq!(
            rank_completions("par", all.to_vec()),
            ["paris", "lib/parse.rs", "sparse.rs", "p/a/r"]
        );
    }

    #[test]
    fn an_empty_text_completes_to_every_value() {
        assert_eq!(rank_completions("", vec!["bb".into(), "a".into()]), ["a", "bb"]);
    }
}
