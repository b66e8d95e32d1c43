//! Classifies a file by its path alone: its language and search tags.

/// Classification of a file by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    /// Language, if known.
    pub lang: Option<&'static str>,
    /// Purpose of the text.
    pub kind: Kind,
    /// True for tests.
    pub is_test: bool,
    /// True for examples and demos.
    pub is_example: bool,
}

/// Purpose of a file's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Program code.
    Code,
    /// Documentation for people.
    Docs,
    /// Configuration.
    Config,
    /// Anything else.
    Other,
}

/// Languages by file extension.
const LANGUAGES: [(&str, Kind, &[&str]); 36] = [
    ("rust", Kind::Code, &["rs"]),
    ("python", Kind::Code, &["py", "pyi"]),
    ("typescript", Kind::Code, &["ts", "tsx", "mts", "cts"]),
    ("javascript", Kind::Code, &["js", "jsx", "mjs", "cjs"]),
    ("go", Kind::Code, &["go"]),
    ("java", Kind::Code, &["java"]),
    ("kotlin", Kind::Code, &["kt", "kts"]),
    ("scala", Kind::Code, &["scala"]),
    ("c", Kind::Code, &["c", "h"]),
    ("cpp", Kind::Code, &["cc", "cpp", "cxx", "hh", "hpp", "hxx"]),
    ("csharp", Kind::Code, &["cs"]),
    ("swift", Kind::Code, &["swift"]),
    ("ruby", Kind::Code, &["rb", "rake"]),
    ("php", Kind::Code, &["php"]),
    ("elixir", Kind::Code, &["ex", "exs"]),
    ("haskell", Kind::Code, &["hs"]),
    ("lua", Kind::Code, &["lua"]),
    ("zig", Kind::Code, &["zig"]),
    ("dart", Kind::Code, &["dart"]),
    ("shell", Kind::Code, &["sh", "bash", "zsh", "fish"]),
    ("powershell", Kind::Code, &["ps1", "psm1"]),
    ("sql", Kind::Code, &["sql"]),
    ("protobuf", Kind::Code, &["proto"]),
    ("html", Kind::Code, &["html", "htm", "vue", "svelte"]),
    ("css", Kind::Code, &["css", "scss", "less"]),
    ("markdown", Kind::Docs, &["md", "markdown", "mdx"]),
    ("restructuredtext", Kind::Docs, &["rst"]),
    ("asciidoc", Kind::Docs, &["adoc", "asciidoc"]),
    ("org", Kind::Docs, &["org"]),
    ("text", Kind::Docs, &["txt", "text"]),
    ("toml", Kind::Config, &["toml"]),
    ("yaml", Kind::Config, &["yaml", "yml"]),
    ("json", Kind::Config, &["json", "jsonc", "json5"]),
    ("xml", Kind::Config, &["xml", "csproj", "props"]),
    ("ini", Kind::Config, &["ini", "cfg", "conf", "properties"]),
    ("terraform", Kind::Config, &["tf", "tfvars"]),
];

/// Languages by whole file name.
const NAMES: [(&str, &str, Kind); 10] = [
    ("readme", "text", Kind::Docs),
    ("license", "text", Kind::Docs),
    ("changelog", "text", Kind::Docs),
    ("contributing", "text", Kind::Docs),
    ("dockerfile", "dockerfile", Kind::Config),
    ("makefile", "make", Kind::Code),
    ("justfile", "make", Kind::Code),
    ("gemfile", "ruby", Kind::Config),
    ("rakefile", "ruby", Kind::Code),
    ("jenkinsfile", "groovy", Kind::Config),
];

/// Returns the language with the name or file extension `name`: `rs` is `rust`.
pub fn language(name: &str) -> Option<&'static str> {
    let name = name.trim_start_matches('.').to_lowercase();
    let by_name = LANGUAGES.iter().map(|(lang, ..)| *lang).chain(NAMES.iter().map(|it| it.1));
    let by_end = LANGUAGES.iter().filter(|(_, _, ends)| ends.contains(&&*name));
    by_name.into_iter().find(|lang| *lang == name).or_else(|| by_end.map(|it| it.0).next())
}

/// Tags for searching files, in addition to languages.
pub const TAGS: [&str; 5] = ["code", "docs", "config", "test", "example"];

impl Sort {
    /// Classifies the file at `path`.
    pub fn of(path: &str) -> Self {
        let lower = path.to_lowercase();
        let (folders, name) = lower.rsplit_once('/').unwrap_or(("", &lower));
        let (stem, end) = name.rsplit_once('.').unwrap_or((name, ""));
        let by_end = LANGUAGES.iter().find(|(_, _, ends)| ends.contains(&end));
        let by_end = by_end.map(|&(lang, kind, _)| (lang, kind));
        let by_name = NAMES.iter().find(|(known, _, _)| *known == name);
        let known = by_end.or(by_name.map(|&(_, lang, kind)| (lang, kind)));
        let in_folder = |names: &[&str]| folders.split('/').any(|folder| names.contains(&folder));
        let is_code = known.is_some_and(|(_, kind)| kind == Kind::Code);
        let named_test = ["test_", "tests_"].iter().any(|it| stem.starts_with(it))
            || ["_test", ".test", "_tests", ".spec", "_spec"].iter().any(|it| stem.ends_with(it))
            || matches!(stem, "test" | "tests" | "conftest");
        Self {
            lang: known.map(|(lang, _)| lang),
            kind: known.map_or(Kind::Other, |(_, kind)| kind),
            is_test: is_code
                && (named_test || in_folder(&["test", "tests", "__tests__", "spec", "testing"])),
            is_example: in_folder(&["example", "examples", "demo", "demos", "samples"]),
        }
    }

    /// Returns the search tags of the file: language, kind, and test or example.
    pub fn tags(self) -> Vec<&'static str> {
        let kind = match self.kind {
            Kind::Code => Some("code"),
            Kind::Docs => Some("docs"),
            Kind::Config => Some("config"),
            Kind::Other => None,
        };
        let test = self.is_test.then_some("test");
        let example = self.is_example.then_some("example");
        self.lang.into_iter().chain(kind).chain(test).chain(example).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_what_a_file_is() {
        for (path, tags) in [
            ("src/auth.rs", &["rust", "code"][..]),
            ("tests/it/auth.rs", &["rust", "code", "test"]),
            ("web/Login.test.tsx", &["typescript", "code", "test"]),
            ("examples/Main.java", &["java", "code", "example"]),
            ("docs/testing/guide.md", &["markdown", "docs"]),
            ("README", &["text", "docs"]),
            ("Dockerfile", &["dockerfile", "config"]),
            ("a.toml", &["toml", "config"]),
            ("notes", &[]),
        ] {
            assert_eq!(Sort::of(path).tags(), tags, "{path}");
        }
    }
}
