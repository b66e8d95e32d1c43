//! Classifies a file by its path alone: its language and search tags.

/// Classification of a file by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileClassification {
    /// Language of the file, if known.
    pub lang: Option<&'static str>,
    /// Purpose of the file's text.
    pub kind: FilePurpose,
    /// True if the file contains tests.
    pub is_test: bool,
    /// True if the file is an example or a demo.
    pub is_example: bool,
}

/// Purpose of a file's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePurpose {
    /// File with program code.
    Code,
    /// File with documentation for people.
    Docs,
    /// File with configuration.
    Config,
    /// Text that is neither code, documentation nor configuration.
    Other,
}

/// Languages, each with its purpose and file extensions.
const LANGUAGES: [(&str, FilePurpose, &[&str]); 36] = [
    ("rust", FilePurpose::Code, &["rs"]),
    ("python", FilePurpose::Code, &["py", "pyi"]),
    ("typescript", FilePurpose::Code, &["ts", "tsx", "mts", "cts"]),
    ("javascript", FilePurpose::Code, &["js", "jsx", "mjs", "cjs"]),
    ("go", FilePurpose::Code, &["go"]),
    ("java", FilePurpose::Code, &["java"]),
    ("kotlin", FilePurpose::Code, &["kt", "kts"]),
    ("scala", FilePurpose::Code, &["scala"]),
    ("c", FilePurpose::Code, &["c", "h"]),
    ("cpp", FilePurpose::Code, &["cc", "cpp", "cxx", "hh", "hpp", "hxx"]),
    ("csharp", FilePurpose::Code, &["cs"]),
    ("swift", FilePurpose::Code, &["swift"]),
    ("ruby", FilePurpose::Code, &["rb", "rake"]),
    ("php", FilePurpose::Code, &["php"]),
    ("elixir", FilePurpose::Code, &["ex", "exs"]),
    ("haskell", FilePurpose::Code, &["hs"]),
    ("lua", FilePurpose::Code, &["lua"]),
    ("zig", FilePurpose::Code, &["zig"]),
    ("dart", FilePurpose::Code, &["dart"]),
    ("shell", FilePurpose::Code, &["sh", "bash", "zsh", "fish"]),
    ("powershell", FilePurpose::Code, &["ps1", "psm1"]),
    ("sql", FilePurpose::Code, &["sql"]),
    ("protobuf", FilePurpose::Code, &["proto"]),
    ("html", FilePurpose::Code, &["html", "htm", "vue", "svelte"]),
    ("css", FilePurpose::Code, &["css", "scss", "less"]),
    ("markdown", FilePurpose::Docs, &["md", "markdown", "mdx"]),
    ("restructuredtext", FilePurpose::Docs, &["rst"]),
    ("asciidoc", FilePurpose::Docs, &["adoc", "asciidoc"]),
    ("org", FilePurpose::Docs, &["org"]),
    ("text", FilePurpose::Docs, &["txt", "text"]),
    ("toml", FilePurpose::Config, &["toml"]),
    ("yaml", FilePurpose::Config, &["yaml", "yml"]),
    ("json", FilePurpose::Config, &["json", "jsonc", "json5"]),
    ("xml", FilePurpose::Config, &["xml", "csproj", "props"]),
    ("ini", FilePurpose::Config, &["ini", "cfg", "conf", "properties"]),
    ("terraform", FilePurpose::Config, &["tf", "tfvars"]),
];

/// Languages that a grammar parses. `tsx` is a dialect of `typescript`.
const PARSED_LANGUAGES: [&str; 12] = [
    "rust",
    "python",
    "typescript",
    "tsx",
    "javascript",
    "go",
    "java",
    "c",
    "cpp",
    "csharp",
    "ruby",
    "shell",
];

/// Complete names of files (in lower case and without extension), each with the language and
/// purpose of the file.
const NAMES: [(&str, &str, FilePurpose); 10] = [
    ("readme", "text", FilePurpose::Docs),
    ("license", "text", FilePurpose::Docs),
    ("changelog", "text", FilePurpose::Docs),
    ("contributing", "text", FilePurpose::Docs),
    ("dockerfile", "dockerfile", FilePurpose::Config),
    ("makefile", "make", FilePurpose::Code),
    ("justfile", "make", FilePurpose::Code),
    ("gemfile", "ruby", FilePurpose::Config),
    ("rakefile", "ruby", FilePurpose::Code),
    ("jenkinsfile", "groovy", FilePurpose::Config),
];

/// Returns the language that `name` means, which is a language's name or a file extension: `rust`
/// for `rs`. `None` if the language is unknown.
pub fn find_language(name: &str) -> Option<&'static str> {
    let name = name.trim_start_matches('.').to_lowercase();
    let by_name = LANGUAGES.iter().map(|(lang, ..)| *lang).chain(NAMES.iter().map(|it| it.1));
    let by_end = LANGUAGES.iter().filter(|(_, _, ends)| ends.contains(&&*name));
    by_name.into_iter().find(|lang| *lang == name).or_else(|| by_end.map(|it| it.0).next())
}

/// Returns `true` if a grammar parses code in the language `lang`.
pub(crate) fn is_parsed_language(lang: &str) -> bool {
    PARSED_LANGUAGES.contains(&lang)
}

/// Tags for searching files by purpose, in addition to languages.
pub const TAGS: [&str; 5] = ["code", "docs", "config", "test", "example"];

impl FileClassification {
    /// Classifies the file at `path` by its language and purpose.
    pub fn for_path(path: &str) -> Self {
        let lower = path.to_lowercase();
        let (folders, name) = lower.rsplit_once('/').unwrap_or(("", &lower));
        let (stem, end) = name.rsplit_once('.').unwrap_or((name, ""));
        let by_end = LANGUAGES.iter().find(|(_, _, ends)| ends.contains(&end));
        let by_end = by_end.map(|&(lang, kind, _)| (lang, kind));
        let by_name = NAMES.iter().find(|(known, _, _)| *known == name);
        let known = by_end.or(by_name.map(|&(_, lang, kind)| (lang, kind)));
        let in_folder = |names: &[&str]| folders.split('/').any(|folder| names.contains(&folder));
        let is_code = known.is_some_and(|(_, kind)| kind == FilePurpose::Code);
        let named_test = ["test_", "tests_"].iter().any(|it| stem.starts_with(it))
            || ["_test", ".test", "_tests", ".spec", "_spec"].iter().any(|it| stem.ends_with(it))
            || matches!(stem, "test" | "tests" | "conftest");
        Self {
            lang: known.map(|(lang, _)| lang),
            kind: known.map_or(FilePurpose::Other, |(_, kind)| kind),
            is_test: is_code
                && (named_test || in_folder(&["test", "tests", "__tests__", "spec", "testing"])),
            is_example: in_folder(&["example", "examples", "demo", "demos", "samples"]),
        }
    }

    /// Returns the search tags of the file: language, purpose, and test or example.
    pub fn tags(self) -> Vec<&'static str> {
        let kind = match self.kind {
            FilePurpose::Code => Some("code"),
            FilePurpose::Docs => Some("docs"),
            FilePurpose::Config => Some("config"),
            FilePurpose::Other => None,
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
    fn a_file_is_classified_by_its_path() {
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
            assert_eq!(FileClassification::for_path(path).tags(), tags, "{path}");
        }
    }
}
