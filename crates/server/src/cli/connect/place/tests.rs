//! Tests that edits of a client's settings keep the rest of the text.

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::cli::connect::record::{SettingsBeforeEdit, SettingsChangeRecord};

const JSON: ServerEntryLocation =
    ServerEntryLocation { format: SettingsFormat::Json, table: "mcpServers", name: "toolgate" };
const TOML: ServerEntryLocation =
    ServerEntryLocation { format: SettingsFormat::Toml, table: "mcp_servers", name: "toolgate" };

fn entry() -> Value {
    json!({ "command": "/bin/toolgate", "args": ["stdio", "/src"] })
}

/// Adds a server's entry to the settings `text` at `place`, and returns the edited text. Checks
/// that removing the entry restores the original bytes.
#[track_caller]
fn edit_and_undo(place: ServerEntryLocation, text: &str) -> String {
    let edited = place.with_entry(text, &entry()).unwrap_or_else(|err| panic!("{err:#}: {text}"));
    let record = SettingsChangeRecord::between(Path::new("/x"), "toolgate", Some(text), &edited);
    assert_eq!(record.undo(&edited), Some(SettingsBeforeEdit::Text(text.to_owned())), "{edited}");
    // Removing without the record may be refused, but changes nothing else.
    if let Ok(without) = place.without_entry(&edited) {
        assert!(place.is_same_otherwise(text, &without).unwrap(), "{without}");
    }
    edited
}

#[test]
fn an_entry_takes_the_indentation_line_ends_and_commas_of_the_text() {
    let added = |line_end: &str, tab: &str| {
        let lines = [
            "    \"toolgate\": {",
            "      \"command\": \"/bin/toolgate\",",
            "      \"args\": [\"stdio\", \"/src\"]",
            "    }",
        ];
        lines.join(line_end).replace("  ", tab)
    };
    let plain = "{\n  // mine\n  \"mcpServers\": {\n    \"a\": { \"url\": \"x\" } // why\n  }\n}\n";
    let edited = edit_and_undo(JSON, plain);
    let expected = plain.replace(" } // why\n", &format!(" }}, // why\n{}\n", added("\n", "  ")));
    assert_eq!(edited, expected);

    let windows = "\u{feff}{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {}\r\n\t}\r\n}\r\n";
    let edited = edit_and_undo(JSON, windows);
    let expected = windows.replace("{}\r\n", &format!("{{}},\r\n{}\r\n", added("\r\n", "\t")));
    assert_eq!(edited, expected);

    let commas = "{\n  \"mcpServers\": {\n    \"a\": {},\n  },\n}\n";
    let edited = edit_and_undo(JSON, commas);
    assert!(edited.starts_with("{\n  \"mcpServers\": {\n    \"a\": {},\n    \"toolgate\": {"));
    assert!(edited.ends_with("},\n  },\n}\n"), "{edited}");
}

#[test]
fn settings_without_servers_get_the_table() {
    for text in ["", "\n", "// none\n", "{}", "{ }\n", "{ \"a\": 1 }", "{\"mcpServers\":{}}"] {
        let edited = edit_and_undo(JSON, text);
        assert_eq!(JSON.entry(&edited).unwrap(), Some(entry()), "{edited}");
    }
    for text in ["", "# none\n", "a = 1", "[b]\nc = 1\n# end\n", "mcp_servers = { }\n"] {
        let edited = edit_and_undo(TOML, text);
        assert_eq!(TOML.entry(&edited).unwrap(), Some(entry()), "{edited}");
    }
}

#[test]
fn a_toml_table_is_added_at_the_end_with_every_comment_kept() {
    let text = "# mine\r\nmodel = \"o\" # why\r\n\r\n[mcp_servers.a]\r\ncommand = 'x'\r\n\r\n\
                # p\r\n[profiles.p]\r\nx = { y = 1 }\r\n# z = 2\r\n";
    let edited = edit_and_undo(TOML, text);
    let table = "\r\n[mcp_servers.toolgate]\r\ncommand = \"/bin/toolgate\"\r\n\
                 args = [\"stdio\", \"/src\"]\r\n";
    assert_eq!(edited, format!("{text}{table}"));
    assert_eq!(TOML.without_entry(&edited).unwrap(), text);
    let followed = format!("{edited}# later\r\n[last]\r\n");
    let expected = format!("{text}# later\r\n[last]\r\n");
    assert_eq!(TOML.without_entry(&followed).unwrap(), expected);
}

#[test]
fn an_entry_is_replaced_in_its_place() {
    let text = "{ \"mcpServers\": {\n  \"toolgate\": { \"url\": \"x\" },\n  \"b\": {} } }";
    let edited = edit_and_undo(JSON, text);
    assert!(edited.find("toolgate") < edited.find("\"b\""), "{edited}");
    let text = "[mcp_servers.toolgate] # a\nurl = 'x'\n[mcp_servers.toolgate.env]\nA = 'b'\n[z]\n";
    let edited = edit_and_undo(TOML, text);
    assert!(edited.find("toolgate") < edited.find("[z]"), "{edited}");
    assert!(!edited.contains("url") && !edited.contains("env"), "{edited}");
}

#[test]
fn invalid_settings_are_refused_with_the_line_and_the_column_but_not_the_text() {
    for (place, text, expected) in [
        (JSON, "{\n  \"a\": s3cret\n}", "line 2, column 8"),
        (JSON, "{\n  \"a\": 1\n  \"b\": 2\n}", "line 2, column 9"),
        (JSON, "{ 'a': 1 }", "line 1, column 3"),
        (JSON, "{ \"mcpServers\": {", "line 1, column 1"),
        (TOML, "a = 1\nb = s3cret\n", "line 2, column 5"),
        (JSON, "[]", "not an object"),
        (JSON, "{ \"mcpServers\": [] }", "`mcpServers` is not an object"),
        (JSON, "{ \"mcpServers\": {}, \"mcpServers\": {} }", "occurs twice"),
        (TOML, "mcp_servers = 1\n", "`mcp_servers` is not a table"),
    ] {
        let failed = format!("{:#}", place.with_entry(text, &entry()).unwrap_err());
        assert!(failed.contains(expected) && !failed.contains("s3cret"), "{text}: {failed}");
    }
}

#[test]
fn undoing_keeps_changes_elsewhere_and_refuses_changes_in_the_same_lines() {
    let text = "{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}\n";
    let edited = JSON.with_entry(text, &entry()).unwrap();
    let record = SettingsChangeRecord::between(Path::new("/x"), "toolgate", Some(text), &edited);
    let elsewhere = edited.replacen("{\n", "{\n  \"theme\": \"dark\",\n", 1);
    let expected = text.replacen("{\n", "{\n  \"theme\": \"dark\",\n", 1);
    assert_eq!(record.undo(&elsewhere), Some(SettingsBeforeEdit::Text(expected)));
    assert_eq!(record.undo(&edited.replace("/src", "/other")), None);
}

/// Random choices of spaces and comments in a settings text, which follow from random bytes.
struct RandomFormattingChoices<'a>(std::slice::Iter<'a, u8>);

impl RandomFormattingChoices<'_> {
    fn pick<'b>(&mut self, options: &[&'b str]) -> &'b str {
        options[usize::from(*self.0.next().unwrap_or(&0)) % options.len()]
    }
}

/// Writes `value` as JSON with random space, comments and trailing commas.
fn write_json(value: &Value, choices: &mut RandomFormattingChoices, text: &mut String) {
    const GAPS: [&str; 8] = ["", "", " ", "\n  ", "\n\t", " /* c */ ", " // c {\n", "\r\n    "];
    let members: Vec<(Option<&String>, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, it)| (Some(name), it)).collect(),
        Value::Array(items) => items.iter().map(|it| (None, it)).collect(),
        other => return *text += &other.to_string(),
    };
    let (open, close) = if value.is_object() { ('{', '}') } else { ('[', ']') };
    text.push(open);
    for (at, (name, member)) in members.iter().enumerate() {
        *text += if at == 0 { "" } else { "," };
        *text += choices.pick(&GAPS);
        if let Some(name) = name {
            *text += &format!("{}:", json!(name));
            *text += choices.pick(&GAPS);
        }
        write_json(member, choices, text);
        *text += choices.pick(&GAPS);
    }
    *text += if members.is_empty() { "" } else { choices.pick(&["", "", ","]) };
    *text += choices.pick(&GAPS);
    text.push(close);
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~é\\n\"\\\\]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let name = "[a-c\"é]{1,2}";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn connecting_and_undoing_restores_the_bytes_of_any_json(
        mut settings in json_value(),
        servers in prop::option::of(json_value()),
        has_mark in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        if !settings.is_object() {
            settings = Value::Object(Map::new());
        }
        if let Some(servers) = servers.filter(Value::is_object) {
            settings["mcpServers"] = servers;
        }
        let mut text = if has_mark { "\u{feff}" } else { "" }.to_owned();
        write_json(&settings, &mut RandomFormattingChoices(bytes.iter()), &mut text);
        edit_and_undo(JSON, &text);
    }

    #[test]
    fn connecting_and_undoing_restores_the_bytes_of_any_toml(
        lines in prop::collection::vec(prop::sample::select(TOML_PARTS.to_vec()), 0..6),
        line_end in prop::sample::select(vec!["\n", "\r\n"]),
        is_ended in any::<bool>(),
    ) {
        let mut parts: Vec<&str> = Vec::new();
        for part in lines {
            if part.starts_with('#') || !parts.contains(&part) {
                parts.push(part);
            }
        }
        let mut text = parts.join("\n").replace('\n', line_end);
        if is_ended {
            text += line_end;
        }
        edit_and_undo(TOML, &text);
    }

    #[test]
    fn no_text_makes_an_edit_panic(text in "[{}\\[\\]\":,a \n\r\t/*#='\\\\]{0,24}") {
        for place in [JSON, TOML] {
            let _ = place.with_entry(&text, &entry());
            let _ = place.without_entry(&text);
        }
    }
}

/// Sections of a TOML file. Each test file contains all of them, in any order.
const TOML_PARTS: [&str; 8] = [
    "# a comment",
    "[mcp_servers.a] # why\ncommand = 'x'",
    "[mcp_servers.a.env]\n\"K\" = \"v\"",
    "[mcp_servers.toolgate]\nurl   = 'x'\n\n",
    "[profiles.p]\nlong = \"\"\"\na\nb\"\"\"",
    "[[list]]\nn = 1",
    "[features]\n  x = [\n    1, # one\n  ]",
    "[projects.\"/a b\"]\ntrust_level = \"trusted\"",
];
