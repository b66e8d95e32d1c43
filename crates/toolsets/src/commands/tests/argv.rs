//! Tests that argument values become words of the command line, and cannot act as other words.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::argument::CommandArgumentValues;
use super::super::template::ArgvTemplateItem;
use super::{CommandTestBench, argv_of, declaration, load, object, refusal};

/// Returns the command line for `input`, if `rest` declares `argv` and `args`. A refusal is a JSON
/// Pointer and a message.
fn render(rest: &str, input: Value) -> Result<Vec<String>, (String, String)> {
    let declared = load(&declaration("p", rest)).unwrap().remove(0);
    let input = object(declared.normalised(input));
    let given = CommandArgumentValues::new(&declared.arguments, &input);
    let mut argv = Vec::new();
    for item in &declared.argv {
        if let Err(err) = ArgvTemplateItem::render(item, &given, &declared.rest, &mut argv) {
            return Err(refusal(Err(err)));
        }
    }
    Ok(argv)
}

#[allow(clippy::needless_pass_by_value, reason = "the input is written at the call")]
fn check(rest: &str, input: Value, expected: &[&str]) {
    assert_eq!(render(rest, input.clone()).unwrap(), expected, "{rest} of {input}");
}

#[test]
fn each_template_form_is_rendered() {
    let args = "[command.\"x.y\".args]\nname = \"string\"\nlist = \"string[]\"\nsome_flag = \"flag\"\n\
                level = \"integer = 3\"\nbox = { type = \"number[4]\", many = \"spread\" }\n";
    let with = |argv: &str| format!("argv = {argv}\n{args}");
    let all = json!({
        "name": "n", "list": ["a", "b"], "some_flag": true, "level": 1, "box": [-1, 2.0, 0.5, 1e3]
    });
    check(&with("['a{{b}}', '{options}']"), json!({}), &["a{b}", "--level", "3"]);
    check(
        &with("['{--}']"),
        all.clone(),
        &[
            "--name",
            "n",
            "--list",
            "a",
            "--list",
            "b",
            "--some-flag",
            "--level",
            "1",
            "--box",
            "-1",
            "2",
            "0.5",
            "1000",
        ],
    );
    let placed = with("['{list...}', '{name?}', '--l={level}', '{--some-flag}', '{options}']");
    check(
        &placed,
        all,
        &["a", "b", "n", "--l=1", "--some-flag", "--box", "-1", "2", "0.5", "1000"],
    );
    check(&placed, json!({"some_flag": false, "list": []}), &["--l=3"]);
    let grouped = with("[['--from', '{name}', 'x'], '{options}']");
    check(&grouped, json!({"name": "n"}), &["--from", "n", "x", "--level", "3"]);
    check(&grouped, json!({}), &["--level", "3"]);
}

#[test]
fn an_option_can_be_renamed_and_joined_with_its_value() {
    let rest = "argv = ['{options}']\n[command.\"x.y\".args]\n\
                a = { type = \"string\", option = \"--in\", joined = true }\n\
                b = { type = \"integer\", option = \"-b\", joined = true }\n\
                c = { type = \"string[]\", joined = true }\n";
    let input = json!({"a": "--evil", "b": -2, "c": ["-x", ""]});
    check(rest, input, &["--in=--evil", "-b-2", "--c=-x", "--c="]);
}

#[test]
fn a_value_that_would_be_read_as_an_option_is_refused() {
    let rest = "argv = ['{a?}', 'x{b?}', '{c...}', '{d?}', '{options}']\n[command.\"x.y\".args]\n\
                a = \"string\"\nb = \"string\"\nc = \"string[]\"\n\
                d = { type = \"string\", dash = \"alone\" }\ne = \"string\"\nf = \"integer\"\n\
                g = { type = \"string[]\", many = \"spread\" }\nh = { type = \"string\", dash = true }\n";
    for (input, expected) in [
        (json!({"a": "-x"}), "/a"),
        (json!({"a": "--evil=1"}), "/a"),
        (json!({"a": "-"}), "/a"),
        (json!({"c": ["ok", "-n"]}), "/c/1"),
        (json!({"d": "--"}), "/d"),
        (json!({"e": "--evil"}), "/e"),
        (json!({"g": ["ok", "-i"]}), "/g/1"),
    ] {
        let (pointer, message) = render(rest, input.clone()).unwrap_err();
        assert_eq!(pointer, expected, "{input}");
        assert!(message.contains("begins with `-`") && message.contains("`./`"), "{message}");
    }
    check(rest, json!({"b": "-x", "d": "-", "e": "-"}), &["x-x", "-", "--e", "-"]);
    check(rest, json!({"f": -5, "h": "-v"}), &["--f", "-5", "--h", "-v"]);
}

#[test]
fn a_nul_character_is_refused() {
    let rest =
        "argv = ['{a?}', '{options}']\n[command.\"x.y\".args]\na = \"string\"\nb = \"string[]\"\n";
    assert_eq!(render(rest, json!({"a": "x\0y"})).unwrap_err().0, "/a");
    assert_eq!(render(rest, json!({"b": ["x", "\0"]})).unwrap_err().0, "/b/1");
}

/// Generates values that a program could read as options, templates or shell syntax.
fn hostile_value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("--evil=1".to_owned()),
        Just("-".to_owned()),
        Just("--".to_owned()),
        Just(String::new()),
        Just("a b\n$(x) `y` ; {a} {options} * '\"".to_owned()),
        "[-a= {}]{0,5}",
        any::<String>(),
    ]
}

proptest! {
    /// Checks that a value of one argument changes only the words of this argument.
    #[test]
    fn a_value_changes_only_its_own_word(
        a in hostile_value(), b in option::of(hostile_value()), c in vec(hostile_value(), 0..3), d in option::of(hostile_value()),
        e in option::of(vec(hostile_value(), 0..3)), f in option::of(hostile_value()), g in any::<Option<bool>>(),
    ) {
        let rest = "argv = ['{a}', '--b={b?}', '{c...}', ['-d', '{d}'], '{--g}', 'end', '{--}']\n\
                    [command.\"x.y\".args]\na = \"string!\"\nb = \"string\"\nc = \"string[]\"\n\
                    d = \"string\"\ne = \"string[]\"\nf = { type = \"string\", joined = true }\n\
                    g = \"flag\"\n";
        let mut input = Map::new();
        input.insert("a".into(), json!(a));
        input.insert("c".into(), json!(c));
        let mut expected = vec![a.clone()];
        let mut bare: Vec<&str> = vec![&a];
        bare.extend(c.iter().map(String::as_str));
        if let Some(b) = &b {
            input.insert("b".into(), json!(b));
            expected.push(format!("--b={b}"));
        }
        expected.extend(c.iter().cloned());
        if let Some(d) = &d {
            input.insert("d".into(), json!(d));
            expected.extend(["-d".to_owned(), d.clone()]);
            bare.push(d);
        }
        if let Some(g) = g {
            input.insert("g".into(), json!(g));
            expected.extend(g.then(|| "--g".to_owned()));
        }
        expected.push("end".into());
        let mut after: Vec<&str> = Vec::new();
        if let Some(e) = &e {
            input.insert("e".into(), json!(e));
            expected.extend(e.iter().flat_map(|e| ["--e".to_owned(), e.clone()]));
            after.extend(e.iter().map(String::as_str));
        }
        if let Some(f) = &f {
            input.insert("f".into(), json!(f));
            expected.push(format!("--f={f}"));
        }
        let has_nul = expected.iter().any(|word| word.contains('\0'));
        let is_bad = bare.iter().any(|value| value.starts_with('-'))
            || after.iter().any(|value| value.starts_with('-') && *value != "-");
        match render(rest, Value::Object(input)) {
            Ok(argv) => {
                prop_assert!(!has_nul && !is_bad, "{:?}", argv);
                prop_assert_eq!(argv, expected);
            }
            Err((pointer, _)) => prop_assert!(has_nul || is_bad, "{}", pointer),
        }
    }
}

#[tokio::test]
async fn arguments_reach_the_program_unchanged() {
    let show = "for word in \"$@\"; do printf '<%s>' \"$word\"; done";
    let bench = CommandTestBench::script(
        show,
        "argv = ['{a}', '{options}', '{more...}']\n[command.\"x.y\".args]\na = \"string!\"\n\
        b = \"string\"\nmore = { type = \"string[]\", dash = true }\n",
    );
    let input = json!({"a": "$(id) 'x' \"y\" *", "b": "\n", "more": ["--raw", "-", ""]});
    let output = bench.call(input).await.unwrap();
    assert_eq!(output.value["stdout"], "<$(id) 'x' \"y\" *><--b><\n><--raw><-><>");
    assert_eq!(argv_of(&output), ["$(id) 'x' \"y\" *", "--b", "\n", "--raw", "-", ""]);
}
