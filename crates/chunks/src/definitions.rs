//! Guesses the definition in a line of code from that line alone, without a parser.

use crate::outline::OutlinePartKind;

/// A definition that begins on a line, as guessed from that line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuessedDefinition {
    /// Names that the line defines.
    pub(crate) names: Vec<String>,
    /// Enclosing name, if the line contains one: `Server` in `func (s *Server) Serve(`.
    pub(crate) outer_name: Option<String>,
    pub(crate) kind: OutlinePartKind,
}

/// Keywords before the name of a function.
const FUNCTION_KEYWORDS: [&str; 7] =
    ["fn", "def", "func", "function", "fun", "macro_rules", "defp"];

/// Keywords before the name of a type or a module.
const TYPE_KEYWORDS: [&str; 16] = [
    "class",
    "struct",
    "enum",
    "trait",
    "interface",
    "type",
    "module",
    "mod",
    "namespace",
    "protocol",
    "extension",
    "object",
    "record",
    "defmodule",
    "message",
    "service",
];

/// Keywords before the name of a constant or a variable.
const VALUE_KEYWORDS: [&str; 5] = ["const", "static", "let", "var", "val"];

/// Words at the start of lines with calls or branches, which define nothing.
const CONTROL_WORDS: [&str; 24] = [
    "if", "for", "while", "switch", "match", "return", "else", "catch", "throw", "new", "await",
    "case", "do", "sizeof", "assert", "delete", "yield", "with", "elif", "unless", "until",
    "raise", "typeof", "super",
];

/// Returns the definition that begins in `line`, if the line looks like a definition.
pub(crate) fn guess_definition(line: &str) -> Option<GuessedDefinition> {
    let code = line.trim();
    if code.is_empty() || is_leading_line(code) {
        return None;
    }
    let is_nested = line.starts_with([' ', '\t']);
    match_keyword(code, is_nested).or_else(|| match_shape(code))
}

/// Returns true if the trimmed line `code` is a comment, an attribute or a decorator, which belong
/// to the next definition.
pub(crate) fn is_leading_line(code: &str) -> bool {
    ["//", "/*", "*/", "* ", "#", "@", "--", "\"\"\"", "template<", "template <"]
        .iter()
        .any(|mark| code.starts_with(mark))
        || code == "*"
}

/// Returns the definition that a keyword begins in the line `code`, such as `pub async fn name`,
/// `export default class Name`, `const NAME`. `None` if the line has no known keyword.
fn match_keyword(code: &str, is_nested: bool) -> Option<GuessedDefinition> {
    let mut rest = code;
    // A definition has few modifiers. A keyword after more words is part of an expression.
    for _ in 0..6 {
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() || CONTROL_WORDS.contains(&word) {
            return None;
        }
        let after = match after.strip_prefix('!') {
            Some(after) if word == "macro_rules" => after,
            Some(_) | None => after,
        };
        if let Some(kind) = keyword_kind(word, after)
            && after.starts_with([' ', '<', '*'])
        {
            let is_local = kind == OutlinePartKind::Value && is_nested;
            let (above, after) = receiver(word, after);
            let names = if is_local { Vec::new() } else { names_after(word, after) };
            return (!names.is_empty()).then_some(GuessedDefinition {
                names,
                outer_name: above,
                kind,
            });
        }
        // Skips `(crate)` of `pub(crate)` and `"C"` of `extern "C"`.
        rest = match after.chars().next()? {
            '(' => after.split_once(')')?.1.trim_start(),
            ' ' => {
                let after = after.trim_start();
                match after.strip_prefix('"') {
                    Some(quoted) => quoted.split_once('"')?.1.trim_start(),
                    None => after,
                }
            }
            _ => return None,
        };
    }
    None
}

/// Returns the kind of definition that the keyword `word` begins. `after` is the text after the
/// keyword. Returns `None` if the keyword begins no definition.
fn keyword_kind(word: &str, after: &str) -> Option<OutlinePartKind> {
    if FUNCTION_KEYWORDS.contains(&word) {
        Some(OutlinePartKind::Function)
    } else if TYPE_KEYWORDS.contains(&word) {
        Some(OutlinePartKind::Type)
    } else if word == "impl" {
        Some(OutlinePartKind::Scope)
    } else if VALUE_KEYWORDS.contains(&word) && is_named_next(after) {
        let makes_function = after.contains("=>") || after.contains("function");
        Some(if makes_function { OutlinePartKind::Function } else { OutlinePartKind::Value })
    } else {
        None
    }
}

/// Returns true if the text `after` a keyword starts with a name, and not with a type followed by a
/// name.
fn is_named_next(after: &str) -> bool {
    let after = after.trim_start().trim_start_matches(is_name).trim_start();
    after.is_empty() || after.starts_with([':', '=', ';', ','])
}

/// Returns the names that a definition with the keyword `word` defines, from the text `after` it.
fn names_after(word: &str, after: &str) -> Vec<String> {
    let head = after.split(['{', '=', ';']).next().unwrap_or_default();
    let head = head.trim_start_matches([' ', '*']);
    if word == "impl" {
        let types = head.split(|c: char| !is_name(c));
        let types = types.filter(|it| it.starts_with(char::is_uppercase) && it.len() > 1);
        return types.take(3).map(str::to_owned).collect();
    }
    // Handles Ruby's `def self.name` and Lua's `function M.name`.
    let end = head.find(|c: char| !(is_name(c) || c == '.' || c == ':')).unwrap_or(head.len());
    let name = head[..end].trim_matches(['.', ':']).rsplit(['.', ':']).next().unwrap_or_default();
    let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    is_name.then(|| name.to_owned()).into_iter().collect()
}

/// Returns the type of the receiver in a Go method such as `func (s *Server) Serve(`, and the text
/// after the receiver.
fn receiver<'l>(word: &str, after: &'l str) -> (Option<String>, &'l str) {
    let receiver = after.trim_start().strip_prefix('(').filter(|_| word == "func");
    let Some((receiver, rest)) = receiver.and_then(|it| it.split_once(')')) else {
        return (None, after);
    };
    let bare = receiver.split('[').next().unwrap_or_default();
    let name = bare.rsplit(|c: char| !is_name(c)).find(|it| !it.is_empty());
    (name.map(str::to_owned), rest)
}

/// Returns the definition in the line `code`, which has no keyword, from its shape: `static int
/// name(int x) {`, `public void name()`, `name(args) {`, `name() {`. `None` for any other shape.
fn match_shape(code: &str) -> Option<GuessedDefinition> {
    let (head, args) = code.split_once('(')?;
    let name_at = head.trim_end_matches(is_name).len();
    let (before, name) = head.split_at(name_at);
    let first = head.split(|c: char| !is_name(c)).next().unwrap_or_default();
    let is_typed = before.ends_with([' ', '*', '&', '>', '~']) && !before.trim().is_empty();
    let is_scoped = before.ends_with("::");
    let opens = code.ends_with('{') && args.contains(')');
    let fits = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && !CONTROL_WORDS.contains(&first)
        && !CONTROL_WORDS.contains(&name)
        && !before.contains(['=', '.', '"', '\'', '|', '!', '?', '+'])
        && !code.ends_with([';', ','])
        && (opens || ((is_typed || is_scoped) && code.ends_with(')')));
    (fits && (is_typed || is_scoped || before.is_empty())).then(|| GuessedDefinition {
        names: vec![name.to_owned()],
        outer_name: None,
        kind: OutlinePartKind::Function,
    })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Vec<String> {
        guess_definition(line).map(|it| it.names).unwrap_or_default()
    }

    #[test]
    fn a_definition_is_recognized_by_its_line_in_many_languages() {
        for (line, name) in [
            ("pub(crate) async fn read_all<T>(x: T) -> u8 {", "read_all"),
            ("    unsafe extern \"C\" fn hook() {", "hook"),
            ("macro_rules! check {", "check"),
            ("pub struct Config;", "Config"),
            ("class Session(Base):", "Session"),
            ("    async def fetch(self):", "fetch"),
            ("export default class App extends Base {", "App"),
            ("export const handler = async (event) => {", "handler"),
            ("interface Options<T> {", "Options"),
            ("func (s *Server) Serve(l net.Listener) error {", "Serve"),
            ("type Server struct {", "Server"),
            ("    public static void main(String[] args) {", "main"),
            ("static int parse_line(const char *s)", "parse_line"),
            ("void Foo::bar(int x) {", "bar"),
            ("  render() {", "render"),
            ("deploy() {", "deploy"),
            ("  def self.build(args)", "build"),
            ("const LIMIT: usize = 4;", "LIMIT"),
        ] {
            assert_eq!(names(line).first().map(String::as_str), Some(name), "{line}");
        }
        assert_eq!(names("impl<T> fmt::Display for Etag<T> {"), ["Display", "Etag"]);
        let serve = guess_definition("func (s *Server[T]) Serve() {").expect("a method");
        assert_eq!(
            (&serve.names[..], serve.outer_name.as_deref()),
            (&["Serve".to_owned()][..], Some("Server"))
        );
    }

    #[test]
    fn a_line_that_only_uses_names_is_no_definition() {
        for line in [
            "    let x = 4;",
            "if (ready(x)) {",
            "return open(path)",
            "// fn commented() {",
            "# def commented():",
            "foo(bar);",
            "    self.call(x)",
            "} else if (x) {",
            "while (next()) {",
            "module.exports = run(x)",
            "print(x)",
            "",
        ] {
            assert_eq!(names(line), Vec::<String>::new(), "{line}");
        }
    }
}
