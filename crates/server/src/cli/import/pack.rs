//! Writes a command pack as TOML.

use serde_json::Value;

/// A program, imported as a pack of declared commands.
pub(super) struct ImportedPack {
    /// Name of the pack of declared commands.
    pub(super) name: &'static str,
    /// Text of the pack file, in TOML.
    pub(super) text: String,
    /// Ids of the commands in the pack.
    pub(super) commands: Vec<String>,
    /// Parts of the program that could not be imported, with reasons, one sentence each.
    pub(super) left_out: Vec<String>,
}

/// A declared command to write into a pack.
pub(super) struct ImportedPackCommand {
    /// Id of the command, such as `stage.command`.
    pub(super) id: String,
    pub(super) about: String,
    pub(super) argv: Vec<String>,
    pub(super) artefacts: Vec<String>,
    /// True if the declared command replaces the built-in tool with the same id.
    pub(super) replaces: bool,
    pub(super) arguments: Vec<ImportedPackArgument>,
}

/// An argument of a declared command in a pack.
pub(super) struct ImportedPackArgument {
    pub(super) name: String,
    /// Type of the argument, in the notation of command packs, such as `integer`.
    pub(super) note: String,
    pub(super) about: String,
    /// Value that the program uses if this argument is missing.
    pub(super) default: Option<Value>,
    pub(super) aliases: Vec<String>,
    /// True if a list is passed as one option with several values. False if the option is repeated
    /// for each value.
    pub(super) is_list_after_option: bool,
    /// True if a single `-` is a valid value of the argument.
    pub(super) accepts_dash: bool,
}

impl ImportedPackCommand {
    /// Returns the command's TOML table.
    pub(super) fn to_toml(&self) -> String {
        let Self { id, about, argv, artefacts, replaces, arguments } = self;
        let mut text = format!("\n[command.{}]\nabout = {}\n", toml_string(id), toml_string(about));
        text += &format!("argv = {}\n", toml_strings(argv));
        if *replaces {
            text += "replaces = true\n";
        }
        if !artefacts.is_empty() {
            text += &format!("artefacts = {}\n", toml_strings(artefacts));
        }
        if !arguments.is_empty() {
            text += &format!("[command.{}.args]\n", toml_string(id));
        }
        for argument in arguments {
            text += &format!("{} = {}\n", argument.name, argument.to_toml());
        }
        text
    }
}

impl ImportedPackArgument {
    fn to_toml(&self) -> String {
        let Self { note, about, default, aliases, is_list_after_option, accepts_dash, .. } = self;
        let mut fields = vec![format!("type = {}", toml_string(note))];
        if !about.is_empty() {
            fields.push(format!("about = {}", toml_string(about)));
        }
        if let Some(default) = default {
            fields.push(format!("assumed = {}", toml_inline(default)));
        }
        if !aliases.is_empty() {
            fields.push(format!("aliases = {}", toml_strings(aliases)));
        }
        if *is_list_after_option {
            fields.push("many = \"spread\"".to_owned());
        }
        if *accepts_dash {
            fields.push("dash = \"alone\"".to_owned());
        }
        match &fields[..] {
            [_] => toml_string(note),
            fields => format!("{{ {} }}", fields.join(", ")),
        }
    }
}

/// Returns `text` as a TOML string on one line. The string is written as JSON, which is valid TOML
/// except for the character DEL.
pub(super) fn toml_string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn toml_strings(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| toml_string(text)).collect();
    format!("[{}]", texts.join(", "))
}

/// Converts the JSON `value` to TOML on one line. Leaves out nulls, which TOML does not have.
fn toml_inline(value: &Value) -> String {
    match value {
        Value::String(text) => toml_string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(toml_inline).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}
