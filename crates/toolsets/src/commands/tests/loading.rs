//! Tests of command packs, and of errors in declarations, with their location and fix.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::super::{CommandDeclarationSource, CommandSettings, load_commands};
use super::{declaration, load};

/// Checks that loading the settings `text` fails at the location `place` with a message that
/// contains `part`.
fn check(text: &str, place: &str, part: &str) {
    let err = load(text).expect_err(text).to_string();
    let expected = format!("toolgate.toml:{place}: ");
    assert!(err.starts_with(&expected) && err.contains(part), "{err}\nexpected {expected}{part}");
}

#[test]
fn an_error_in_a_declaration_is_reported_with_its_location() {
    let x = |rest: &str| declaration("sh", rest);
    check("[command.\"x.y\"", "1:15", "");
    check("[command]\nabout = 'x'", "2:9", "expected a table with the name of the command");
    check("[command.x]\nabout = 'x'", "1:10", "`x` is not a command id");
    check("[command.\"X.y\"]\nabout = 'x'", "1:10", "a to z, 0 to 9");
    check("[command.\"a.b.c\"]\nabout = 'x'", "1:10", "in both parts");
    check("[command.\"x.y\"]\nprogram = 'sh'\nargv = []", "1:10", "add `about = \"…\"`");
    check("[command.\"x.y\"]\nabout = 'x'\nargv = []", "1:10", "names no program");
    check(&x(""), "1:10", "has no `argv`");
    check(&x("arg = []"), "4:1", "`arg` is not a setting; expected one of");
    check(&x("arg = []"), "4:1", "; did you mean `args`?");
    check(&x("argv = [1]"), "4:9", "expected a string, or an array of strings");
    check(
        &x("argv = ['a', '{inptu}']\n[command.\"x.y\".args]\ninput = 'string!'"),
        "4:14",
        "the argument `inptu` is not declared; ",
    );
    check(
        &x("argv = ['a', '{inptu}']\n[command.\"x.y\".args]\ninput = 'string!'"),
        "4:14",
        "; did you mean `input`?",
    );
    check(&x("argv = [['a', '{b}']]"), "4:15", "`b` is not declared; declare it in `args`");
    check(&x("argv = ['{a']"), "4:9", "that is not closed");
    check(&x("argv = ['a}']"), "4:9", "an unmatched `}`");
    check(
        &x("argv = ['x{--a}']\n[command.\"x.y\".args]\na = 'string'"),
        "4:9",
        "a separate string",
    );
    check(&x("argv = ['{a}']\n[command.\"x.y\".args]\na = 'string'"), "4:9", "write `{a?}`");
    check(&x("argv = ['{a}']\n[command.\"x.y\".args]\na = 'string[]!'"), "4:9", "write `{a...}`");
    check(&x("argv = ['{a}']\n[command.\"x.y\".args]\na = 'flag'"), "4:9", "write `{--a}`");
    check(&x("argv = ['{a...}']\n[command.\"x.y\".args]\na = 'string!'"), "4:9", "is not a list");
    check(
        &x("argv = ['--{a}']\n[command.\"x.y\".args]\na = 'string!'"),
        "4:9",
        "choose the option",
    );
    check(&x("argv = ['a']\n[command.\"x.y\".args]\nb = 'string'"), "6:1", "is not passed on");
    let args = |args: &str| x(&format!("argv = ['{{options}}']\n[command.\"x.y\".args]\n{args}"));
    check(&args("a = 'strnig'"), "6:5", "did you mean `string`?");
    check(&args("a = 1"), "6:5", "expected a type note such as \"string!\", or a table");
    check(&args("a = { type = 'string', defualt = 1 }"), "6:24", "did you mean `default`?");
    check(&args("a = { about = 'x' }"), "6:1", "add e.g. `type = \"string\"`");
    check(&args("a = { type = 'integer', default = 'x' }"), "6:35", "does not match the type");
    check(&args("a = { type = 'string', option = 'in' }"), "6:33", "is not an option");
    check(&args("a = { type = 'string', schema = {} }"), "6:33", "keep one");
    check(&args("a = { type = 'string', dash = 'never' }"), "6:31", "true, false or \"alone\"");
    check(&args("options = 'string'"), "6:1", "this name means all other arguments");
    check(&args("a-b = 'string'\na_b = 'string'"), "7:1", "name or alias `a_b`");
    check(
        &args("a = 'string'\nb = { type = 'string', aliases = ['a'] }"),
        "7:1",
        "name or alias `a`",
    );
    check(
        &args("a = { type = 'string', about = 'x\u{200b}' }"),
        "6:1",
        "a text of `a` has the hidden character U+200B at byte 1",
    );
    check(
        "[command.\"x.y\"]\nabout = \"Runs.\\u001b[2J\"\nprogram = 'sh'\nargv = []",
        "2:9",
        "the description has the hidden character U+001B at byte 5",
    );
    let y = |rest: &str| x(&format!("argv = []\n{rest}"));
    check(&y("progress = '(\\d+'"), "5:12", "is not a valid regular expression");
    check(&y("progress = '\\d+'"), "5:12", "needs one group");
    check(&y("artefacts = ['ok', 'a[']"), "5:20", "is not a valid glob");
    check(&y("artefacts = ['{out}']"), "5:14", "`out` is not declared");
    check(&y("stdin = 'text'"), "5:9", "`text` is not declared");
    check(&y("deadline_ms = 0"), "5:15", "may be 1 to 86400000");
    check(&y("deadline_ms = -1"), "5:15", "");
    check(&y("at_once = 0"), "5:11", "deny the tool");
    check(&y("at_once = 1000001"), "5:11", "may be 1 to 1000000");
    check(&y("effects = 'writes'"), "5:11", "expected one of");
    check(&y("env = { LD_PRELOAD = 'x' }"), "5:9", "`LD_PRELOAD` may not be set");
    check(&y("env = { PATH = 'x' }"), "5:9", "`PATH` may not be set");
    let twice = format!("{}argv = []\n[command.\"x-y.z\"]\n", declaration("sh", ""));
    check(&twice, "5:10", "add `about");
    let twice = "[command.'x.y-z']\nabout = 'é'\nprogram = 'sh'\nargv = []\n\
                 [command.'x.y_z']\nabout = 'x'\nprogram = 'sh'\nargv = []\n";
    check(twice, "5:10", "`x.y_z` is declared twice, first as `x.y-z` at toolgate.toml:1");
}

#[test]
fn a_pack_is_a_file_or_a_folder_of_files_with_defaults() {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    put(
        "b.toml",
        "[defaults]\nprogram = 'bin/p'\nargs = { verbose = 'flag' }\nenv = { A = 'a' }\n\
        [command.'b.one']\nabout = 'One.'\nargv = ['{options}']\n\
        [command.'b.two']\nabout = 'Two.'\nprogram = 'q'\nargv = ['{--verbose}']\nenv = { B = 'b' }\n",
    );
    put("a.toml", "[command.'a.one']\nabout = 'One.'\nprogram = 'r'\nargv = []\n");
    put("notes.txt", "not a pack");
    let configuration = CommandDeclarationSource {
        file: folder.path().join("toolgate.toml"),
        text: "[server]\nx = 1\n".into(),
    };
    let packs = |packs: &[&str]| CommandSettings {
        packs: packs.iter().map(Into::into).collect(),
        programs: [("r".to_owned(), "opt/r".to_owned())].into(),
    };
    let all = load_commands(
        &packs(&["."]),
        Some(&CommandDeclarationSource {
            file: folder.path().join("x/toolgate.toml"),
            ..configuration.clone()
        }),
    );
    assert!(all.unwrap_err().to_string().contains("the pack cannot be read"));
    let all = load_commands(&packs(&["."]), Some(&configuration)).unwrap();
    let ids: Vec<&str> = all.iter().map(|declared| declared.id()).collect();
    assert_eq!(ids, ["a.one", "b.one", "b.two"]);
    let at = |index: usize| all[index].program.at.as_str();
    assert_eq!(at(0), folder.path().join("opt/r").to_str().unwrap());
    assert!(at(1).ends_with("/bin/p") && Path::new(at(1)).is_absolute(), "{}", at(1));
    assert_eq!(at(2), "q");
    assert_eq!(all[2].env, [("A".into(), "a".into()), ("B".into(), "b".into())]);
    assert_eq!(all[1].title, "B one");
    let err = load_commands(&packs(&["b.toml", "b.toml"]), Some(&configuration)).unwrap_err();
    assert!(err.message.contains("declared twice"), "{err}");
    put("a.toml", "[defaults]\nabout = 'x'\n");
    let err = load_commands(&packs(&["a.toml"]), Some(&configuration)).unwrap_err();
    assert_eq!((err.line, err.column), (2, 9));
    assert!(err.message.starts_with("`about` applies to one command"), "{err}");
}
