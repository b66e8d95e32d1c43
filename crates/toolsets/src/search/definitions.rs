//! What a line of code defines, told by the line alone: no parser, no more than a guess.

/// What a line begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    /// The names it gives.
    pub(super) names: Vec<String>,
    /// Whether it is a function, a type or a module: not a mere constant.
    pub(super) is_large: bool,
}

/// Words before the name of a function, a type or a module.
const LARGE: [&str; 24] = [
    "fn",
    "def",
    "class",
    "struct",
    "enum",
    "trait",
    "impl",
    "interface",
    "func",
    "function",
    "fun",
    "type",
    "module",
    "mod",
    "namespace",
    "protocol",
    "extension",
    "object",
    "record",
    "macro_rules",
    "defmodule",
    "defp",
    "message",
    "service",
];

/// Words before the name of a constant or a variable.
const SMALL: [&str; 5] = ["const", "static", "let", "var", "val"];

/// Words with which a line begins that calls or decides and does not define.
const CONTROL: [&str; 24] = [
    "if", "for", "while", "switch", "match", "return", "else", "catch", "throw", "new", "await",
    "case", "do", "sizeof", "assert", "delete", "yield", "with", "elif", "unless", "until",
    "raise", "typeof", "super",
];

/// What `line` defines, if it looks as if it defined something.
pub(super) fn definition(line: &str) -> Option<Definition> {
    let code = line.trim();
    if code.is_empty() || is_lead(code) {
        return None;
    }
    let is_nested = line.starts_with([' ', '\t']);
    by_keyword(code, is_nested).or_else(|| by_shape(code))
}

/// Whether the trimmed line `code` is a comment, an attribute or a decorator, which belong to what
/// comes after.
pub(super) fn is_lead(code: &str) -> bool {
    ["//", "/*", "*/", "* ", "#", "@", "--", "\"\"\"", "template<", "template <"]
        .iter()
        .any(|mark| code.starts_with(mark))
        || code == "*"
}

/// `pub async fn name`, `export default class Name`, `const NAME`.
fn by_keyword(code: &str, is_nested: bool) -> Option<Definition> {
    let mut rest = code;
    // Modifiers are few; a keyword farther on is part of an expression.
    for _ in 0..6 {
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() || CONTROL.contains(&word) {
            return None;
        }
        let after = match after.strip_prefix('!') {
            Some(after) if word == "macro_rules" => after,
            Some(_) | None => after,
        };
        let is_large = LARGE.contains(&word);
        let is_small = SMALL.contains(&word) && is_named_next(after);
        if (is_large || is_small) && after.starts_with([' ', '<', '*']) {
            let named = names(word, after);
            let (names, is_large) = if is_large {
                (named, true)
            } else {
                let makes_function = after.contains("=>") || after.contains("function");
                (if is_nested && !makes_function { Vec::new() } else { named }, makes_function)
            };
            return (!names.is_empty()).then_some(Definition { names, is_large });
        }
        // `pub(crate)`, `extern "C"`.
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

/// Whether a name and then its type or its value comes: not a type and then a name.
fn is_named_next(after: &str) -> bool {
    let after = after.trim_start().trim_start_matches(is_name).trim_start();
    after.is_empty() || after.starts_with([':', '=', ';', ','])
}

/// The names after the keyword `word`.
fn names(word: &str, after: &str) -> Vec<String> {
    let head = after.split(['{', '=', ';']).next().unwrap_or_default();
    let mut head = head.trim_start_matches([' ', '*']);
    if word == "impl" {
        let types = head.split(|c: char| !is_name(c));
        let types = types.filter(|it| it.starts_with(char::is_uppercase) && it.len() > 1);
        return types.take(3).map(str::to_owned).collect();
    }
    // Go's receiver: `func (s *Server) Serve(`.
    let mut names = Vec::new();
    if word == "func" && head.starts_with('(') {
        let Some((receiver, rest)) = head.split_once(')') else { return names };
        names.extend(receiver.rsplit(|c: char| !is_name(c)).next().map(str::to_owned));
        head = rest.trim_start();
    }
    // Ruby's `def self.name`, Lua's `function M.name`.
    let end = head.find(|c: char| !(is_name(c) || c == '.' || c == ':')).unwrap_or(head.len());
    let name = head[..end].trim_matches(['.', ':']).rsplit(['.', ':']).next().unwrap_or_default();
    if name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        names.insert(0, name.to_owned());
    }
    names
}

/// `static int name(int x) {`, `public void name()`, `name(args) {`, `name() {`.
fn by_shape(code: &str) -> Option<Definition> {
    let (head, args) = code.split_once('(')?;
    let name_at = head.rfind(|c: char| !is_name(c)).map_or(0, |at| at + 1);
    let (before, name) = head.split_at(name_at);
    let first = head.split(|c: char| !is_name(c)).next().unwrap_or_default();
    let is_typed = before.ends_with([' ', '*', '&', '>', '~']) && !before.trim().is_empty();
    let is_scoped = before.ends_with("::");
    let opens = code.ends_with('{') && args.contains(')');
    let fits = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && !CONTROL.contains(&first)
        && !CONTROL.contains(&name)
        && !before.contains(['=', '.', '"', '\'', '|', '!', '?', '+'])
        && !code.ends_with([';', ','])
        && (opens || ((is_typed || is_scoped) && code.ends_with(')')));
    (fits && (is_typed || is_scoped || before.is_empty()))
        .then(|| Definition { names: vec![name.to_owned()], is_large: true })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Vec<String> {
        definition(line).map(|it| it.names).unwrap_or_default()
    }

    #[test]
    fn a_definition_is_told_by_its_line_in_many_languages() {
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
        assert_eq!(names("func (s *Server) Serve() {"), ["Serve", "Server"]);
    }

    #[test]
    fn a_line_that_uses_defines_nothing() {
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
