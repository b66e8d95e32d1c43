//! Removes line numbers from text in which each line begins with its number, as many programs print
//! files.

/// Returns `old` without its line numbers, once for each style of separator that fits. Returns an
/// empty list if the lines of `old` are not numbered consecutively.
pub(super) fn unnumbered(old: &str) -> Vec<String> {
    let (body, end) = old.strip_suffix('\n').map_or((old, ""), |body| (body, "\n"));
    let numbered: Option<Vec<_>> = body.split('\n').map(split_number).collect();
    let Some(numbered) = numbered else { return Vec::new() };
    let follows = |pair: &[(u64, &str)]| pair[0].0 + 1 == pair[1].0;
    if !numbered.windows(2).all(follows) {
        return Vec::new();
    }
    let whole = |rest: &dyn Fn(&str) -> Option<String>| -> Option<String> {
        let lines: Option<Vec<_>> = numbered.iter().map(|(_, line)| rest(line)).collect();
        Some(lines?.join("\n") + end)
    };
    // Some programs write a space after the separator: `12: text`. Others write `12:text`.
    let spaced = |line: &str| match line {
        "" => Some(String::new()),
        line => line.strip_prefix(' ').map(str::to_owned),
    };
    [whole(&|line| Some(line.to_owned())), whole(&spaced)].into_iter().flatten().collect()
}

/// Splits `line` into its leading line number and the text after the separator. Returns `None` if
/// `line` has no number.
fn split_number(line: &str) -> Option<(u64, &str)> {
    let line = line.trim_start_matches([' ', '\t']);
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = line.split_at(digits);
    let number = number.parse().ok()?;
    let rest = rest.strip_prefix(' ').filter(|rest| rest.starts_with('|')).unwrap_or(rest);
    Some((number, rest.strip_prefix(['\t', '\u{2192}', ':', '|', '-'])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_numbers_are_removed_with_any_separator() {
        for numbered in [
            "     7\tfn a() {\n     8\t}",
            "     7\u{2192}fn a() {\n     8\u{2192}}",
            "7:fn a() {\n8:}",
            "7: fn a() {\n8: }",
            "7 | fn a() {\n8 | }",
            "  9|fn a() {\n 10|}",
        ] {
            let all = unnumbered(numbered);
            assert!(all.contains(&"fn a() {\n}".to_owned()), "{numbered:?}: {all:?}");
        }
        assert!(unnumbered("1:a\n2:\n3:b\n").contains(&"a\n\nb\n".to_owned()));
    }

    #[test]
    fn text_without_consecutive_line_numbers_gives_nothing() {
        for other in
            ["", "a", "1", "12 apples", "1:a\n3:b", "1:a\nb", "a:1", "99999999999999999999:a"]
        {
            assert!(unnumbered(other).is_empty(), "{other:?}");
        }
    }
}
