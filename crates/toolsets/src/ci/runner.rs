//! Recognizes the test runner in a script of a `package.json`, to select tests by name.

/// A JavaScript test runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// The test runner of Node itself.
    Node,
    /// Jest and Vitest.
    Jest,
    Mocha,
}

/// Options of `node` whose value is a separate word.
const VALUED: [&str; 12] = [
    "--import",
    "--require",
    "-r",
    "--loader",
    "--experimental-loader",
    "--env-file",
    "--conditions",
    "-C",
    "--test-reporter",
    "--test-reporter-destination",
    "--test-concurrency",
    "--test-timeout",
];

/// The advice for a program that is not recognized.
const IN_ARGS: &str = "give what it understands in `args`";

impl Runner {
    /// Recognizes the runner that receives arguments appended to `script`. The error gives advice
    /// if it cannot select tests by name.
    pub(super) fn of(script: &str) -> Result<Self, String> {
        let last = script.rsplit(['&', ';', '|']).next().unwrap_or_default();
        let words: Vec<&str> = last.split_whitespace().collect();
        for (at, word) in words.iter().enumerate() {
            let program = word.rsplit('/').next().unwrap_or(word);
            match program.trim_end_matches(".js") {
                "jest" | "vitest" => return Ok(Self::Jest),
                "react-scripts" if words.get(at + 1) == Some(&"test") => return Ok(Self::Jest),
                "mocha" | "_mocha" => return Ok(Self::Mocha),
                "node" => return Self::node(script, &words[at + 1..]),
                _ => {}
            }
        }
        Err(unknown(script, IN_ARGS))
    }

    /// Recognizes the runner in a `node` command with the arguments `words`.
    fn node(script: &str, words: &[&str]) -> Result<Self, String> {
        let mut before = "";
        for word in words {
            let word_before = std::mem::replace(&mut before, word);
            if word.starts_with('-') || VALUED.contains(&word_before) {
                continue;
            }
            let program = word.rsplit('/').next().unwrap_or(word);
            match program.trim_end_matches(".js") {
                "jest" | "vitest" => return Ok(Self::Jest),
                "mocha" | "_mocha" => return Ok(Self::Mocha),
                // `node` treats arguments after a file as more files.
                _ => break,
            }
        }
        let is_all = words
            .iter()
            .enumerate()
            .all(|(at, word)| word.starts_with('-') || at > 0 && VALUED.contains(&words[at - 1]));
        if words.contains(&"--test") && is_all {
            return Ok(Self::Node);
        }
        let instead = if words.contains(&"--test") {
            "run `node --test --test-name-pattern=NAME FILES` with ci_run"
        } else {
            IN_ARGS
        };
        Err(unknown(script, instead))
    }

    /// Returns the arguments that run only the tests that match `filter`.
    pub(super) fn filter(self, filter: String) -> Vec<String> {
        match self {
            Self::Node => vec![format!("--test-name-pattern={filter}")],
            Self::Jest => vec!["-t".to_owned(), filter],
            Self::Mocha => vec!["-g".to_owned(), filter],
        }
    }
}

fn unknown(script: &str, instead: &str) -> String {
    format!(
        "how the script `test` (`{}`) chooses tests by name is not known; leave `filter` out and \
         {instead}",
        script.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_s_last_program_is_given_the_name() {
        let check = |script, args: &[&str]| {
            let filter = Runner::of(script).map(|runner| runner.filter("adds".to_owned()));
            assert_eq!(filter.unwrap(), args, "{script}");
        };
        check("node --test", &["--test-name-pattern=adds"]);
        check("tsc && node --import tsx --test", &["--test-name-pattern=adds"]);
        check("jest --ci", &["-t", "adds"]);
        check("NODE_ENV=test npx vitest run", &["-t", "adds"]);
        check("node --experimental-vm-modules node_modules/jest/bin/jest.js", &["-t", "adds"]);
        check("react-scripts test", &["-t", "adds"]);
        check("nyc ./node_modules/.bin/mocha test", &["-g", "adds"]);
    }

    #[test]
    fn where_the_name_would_be_taken_for_something_else_it_is_refused() {
        let refused = ["", "jest && eslint .", "node test.js", "node --test test/a.js", "ava"];
        for script in refused {
            let why = Runner::of(script).unwrap_err();
            assert!(why.contains("leave `filter` out and"), "{script}: {why}");
        }
    }
}
