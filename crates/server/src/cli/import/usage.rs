//! Parses the usage text of Python's argparse to find the number of values of each option.

use std::collections::BTreeMap;

/// The number of values that a command-line option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionValueCount {
    None,
    One,
    /// The option takes one value or none.
    Optional,
    Exactly(usize),
    /// The option takes several values: any number of them, or one or more.
    Many,
}

/// The usage of a command, parsed from its help.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CommandUsageLine {
    /// Number of values of each option. An option has an entry under the name in the usage line and
    /// one under its long name.
    pub(super) options: BTreeMap<String, OptionValueCount>,
    /// Groups of options. The command requires exactly one option of each group.
    pub(super) choices: Vec<Vec<String>>,
}

impl CommandUsageLine {
    /// Parses the help text `printed` of a program, from `usage:` to the next empty line. Returns
    /// `None` if the text has no usage.
    pub(super) fn parse(printed: &str) -> Option<Self> {
        let (_, usage) = printed.split_once("usage: ")?;
        let usage = usage.split("\n\n").next().unwrap_or_default();
        // An error follows on a line without indentation.
        let mut lines = usage.lines();
        let first = lines.next().unwrap_or_default();
        let more = lines.take_while(|line| line.starts_with(' '));
        let usage: Vec<&str> = std::iter::once(first).chain(more).collect();
        let usage = usage.join(" ");
        let mut spaced = String::new();
        for c in usage.chars() {
            match c {
                '[' | ']' | '(' | ')' | '|' => spaced.extend([' ', c, ' ']),
                other => spaced.push(other),
            }
        }
        let tokens: Vec<&str> = spaced.split_whitespace().collect();
        let mut parsed = Self::default();
        parsed.read_options(&tokens);
        parsed.read_choices(&tokens);
        Some(parsed)
    }

    fn read_options(&mut self, tokens: &[&str]) {
        for (at, option) in tokens.iter().enumerate().filter(|(_, token)| token.starts_with('-')) {
            let after = &tokens[at + 1..];
            let name = after.first().copied().unwrap_or_default();
            let is_value = |token: &str| !token.starts_with(['-', '[', ']', '(', ')', '|']);
            let values = match after {
                ["[", _, "...", "]", ..] => OptionValueCount::Many,
                ["[", inner, "]", ..] if is_value(inner) => OptionValueCount::Optional,
                [first, "[", _, "...", "]", ..] if is_value(first) => OptionValueCount::Many,
                [first, ..] if is_value(first) => {
                    match after.iter().take_while(|token| *token == first).count() {
                        1 => OptionValueCount::One,
                        more => OptionValueCount::Exactly(more),
                    }
                }
                _ => OptionValueCount::None,
            };
            self.options.insert((*option).to_owned(), values);
            if values != OptionValueCount::None && !option.starts_with("--") {
                let full = format!("--{}", name.to_lowercase().replace('_', "-"));
                self.options.entry(full).or_insert(values);
            }
        }
    }

    /// Reads the groups in parentheses, such as `(--a | --b)`, from `tokens` into `choices`. One
    /// option of each group is required.
    fn read_choices(&mut self, tokens: &[&str]) {
        for group in tokens.split(|token| *token == "(").skip(1) {
            let group = group.split(|token| *token == ")").next().unwrap_or_default();
            let options = group.iter().filter(|token| token.starts_with('-'));
            self.choices.push(options.map(|option| (*option).to_owned()).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_line_gives_the_number_of_values_of_each_option() {
        let usage = CommandUsageLine::parse(
            "usage: zyra x [-h] -i INPUT [--raw] [--inputs INPUTS [INPUTS ...]]\n\
             \x20             [--extent EXTENT EXTENT EXTENT EXTENT] [--tint [TINT]] [--any [ANY ...]]\n\
             \x20             (--url URL | --bucket BUCKET) [-o OUTPUT]\n\
             \x20             [file] {netcdf,geotiff}\n\nAbout --this.\n",
        )
        .unwrap();
        let values = |option: &str| usage.options.get(option).copied();
        assert_eq!(values("-h"), Some(OptionValueCount::None));
        assert_eq!(values("--input"), Some(OptionValueCount::One));
        assert_eq!(values("--raw"), Some(OptionValueCount::None));
        assert_eq!(values("--inputs"), Some(OptionValueCount::Many));
        assert_eq!(values("--extent"), Some(OptionValueCount::Exactly(4)));
        assert_eq!(values("--tint"), Some(OptionValueCount::Optional));
        assert_eq!(values("--any"), Some(OptionValueCount::Many));
        assert_eq!(values("--output"), Some(OptionValueCount::One));
        assert_eq!(values("--this"), None);
        assert_eq!(usage.choices, [["--url", "--bucket"]]);
    }

    #[test]
    fn an_error_after_the_usage_line_is_not_part_of_it() {
        let printed = "usage: zyra x [-h] --dir DIR\nzyra x: error: required: --dir --other\n";
        let usage = CommandUsageLine::parse(printed).unwrap();
        assert_eq!(usage.options.len(), 2);
        assert_eq!(CommandUsageLine::parse("Traceback"), None);
    }
}
