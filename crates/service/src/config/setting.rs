//! Derives each setting's variable, schema and reference entry from the settings types.

use std::fmt::Write as _;

use anyhow::Context;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::{Config, SETTINGS_FILE_NAME};

/// Prefix of the environment variable of every setting.
pub(super) const ENV_PREFIX: &str = "TOOLGATE_";

/// Similarity (0 to 1) above which a known name of a setting is suggested for an unknown one.
const SIMILARITY_MIN: f64 = 0.55;

/// A setting, derived from the settings types.
pub(super) struct SettingSpec {
    /// Section and name of the setting in the settings file, such as `server` and `listen`.
    pub(super) path: [String; 2],
    pub(super) env: String,
    pub(super) schema: Value,
    pub(super) default: Value,
}

/// Returns all settings in the order of the settings file.
pub(super) fn settings() -> Vec<SettingSpec> {
    let schema = schema();
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let sections = schema["properties"].as_object().cloned().unwrap_or_default();
    let mut settings = Vec::new();
    for (section, body) in &sections {
        for (name, schema) in body["properties"].as_object().into_iter().flatten() {
            // Lists of tables have no environment variable.
            if list_item_schema(schema).is_some() {
                continue;
            }
            settings.push(SettingSpec {
                path: [section.clone(), name.clone()],
                env: format!("{ENV_PREFIX}{section}_{name}").to_uppercase(),
                schema: schema.clone(),
                default: defaults[section][name].clone(),
            });
        }
    }
    settings
}

impl SettingSpec {
    pub(super) fn set(&self, table: &mut toml::Table, text: &str) -> anyhow::Result<()> {
        let bad = || format!("{} is `{text}`; it must be {}", self.env, self.expected());
        let value = match self.schema["type"].as_str() {
            Some("integer") => toml::Value::Integer(text.trim().parse().ok().with_context(bad)?),
            Some("boolean") => toml::Value::Boolean(text.trim().parse().ok().with_context(bad)?),
            Some("array") => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                toml::Value::Array(items.map(|item| item.to_owned().into()).collect())
            }
            Some("object") => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                let named = items.map(|item| {
                    let (name, value) = item.split_once('=')?;
                    Some((name.trim().to_owned(), value.trim().to_owned().into()))
                });
                toml::Value::Table(named.collect::<Option<_>>().with_context(bad)?)
            }
            _ => toml::Value::String(text.to_owned()),
        };
        let [section, name] = &self.path;
        let section = table.entry(section.as_str()).or_insert_with(|| toml::Table::new().into());
        if let Some(section) = section.as_table_mut() {
            section.insert(name.clone(), value);
        }
        Ok(())
    }

    /// Returns true if `value` has the type of the setting.
    pub(super) fn accepts(&self, value: &toml::Value) -> bool {
        if let Some(choices) = self.choices() {
            return match value.as_str() {
                Some(value) => choices.contains(&&Value::from(value)),
                None => value.is_table() && self.may_be_table(),
            };
        }
        match self.schema["type"].as_str() {
            Some("integer") => value.is_integer(),
            Some("boolean") => value.is_bool(),
            Some("string") => value.is_str(),
            Some("array") => value.is_array(),
            Some("object") => value.is_table(),
            Some(_) | None => true,
        }
    }

    /// Describes the value that the setting expects.
    pub(super) fn expected(&self) -> String {
        if let Some(choices) = self.choices() {
            let names: Vec<_> = choices.into_iter().filter_map(Value::as_str).collect();
            let table = if self.may_be_table() { ", or a table" } else { "" };
            return format!("one of {}{table}", names.join(", "));
        }
        match self.schema["type"].as_str() {
            Some("integer") => "a whole number".to_owned(),
            Some("boolean") => "true or false".to_owned(),
            Some("array") => "a list of strings".to_owned(),
            Some("object") => "a table of strings".to_owned(),
            Some(_) | None => "a string".to_owned(),
        }
    }

    fn choices(&self) -> Option<Vec<&Value>> {
        let choices = self.schema["oneOf"].as_array().or(self.schema["enum"].as_array())?;
        let words = choices.iter().flat_map(|choice| match choice["enum"].as_array() {
            Some(words) => words.iter().collect(),
            None => vec![choice.get("const").unwrap_or(choice)],
        });
        Some(words.filter(|word| !word.is_object() && !word.is_null()).collect())
    }

    /// Returns true if the setting also accepts a table as its value.
    fn may_be_table(&self) -> bool {
        let choices = self.schema["oneOf"].as_array();
        choices.is_some_and(|choices| choices.iter().any(|it| it["type"] == "object"))
    }

    fn type_text(&self) -> String {
        if let Some(choices) = self.choices() {
            let mut kinds: Vec<String> = choices.iter().map(ToString::to_string).collect();
            kinds.extend(self.may_be_table().then(|| "a table".to_owned()));
            return kinds.join(" or ");
        }
        // Settings inside tables have no environment variable.
        let kind = type_name(&self.schema);
        let spelling = match &*kind {
            "list of strings" if !self.env.is_empty() => {
                "; in the environment, separated by commas"
            }
            "table of strings" if !self.env.is_empty() => {
                "; in the environment, `name=value` separated by commas"
            }
            _ => "",
        };
        format!("{kind}{spelling}")
    }
}

/// Returns an error message about the first section or table in `table` that is written in the
/// wrong form, such as `[listen]` instead of `[[listen]]`. If all forms are right, returns a
/// message about the first unknown name, or `None`.
pub(super) fn describe_shape_error(table: &toml::Table) -> Option<String> {
    let schema = schema();
    let sections = schema["properties"].as_object()?;
    let shape_error = sections.iter().find_map(|(section, body)| {
        let value = table.get(section)?;
        if list_item_schema(body).is_some() {
            return describe_list_error(section, value);
        }
        if map_item_schema(body).is_some() {
            let named = value.as_table();
            let is_named = named.is_some_and(|tables| tables.values().all(toml::Value::is_table));
            return (!is_named).then(|| {
                format!("each table of `{section}` has a name: write `[{section}.NAME]`")
            });
        }
        let Some(settings) = value.as_table() else {
            return Some(format!("`{section}` must be a table, `[{section}]`"));
        };
        let mut inner = body["properties"].as_object()?.iter();
        inner.find_map(|(name, schema)| {
            list_item_schema(schema)?;
            describe_list_error(&format!("{section}.{name}"), settings.get(name)?)
        })
    });
    shape_error.or_else(|| describe_unknown_name(table, &schema, ""))
}

/// Rewords `message`, an error of the TOML parser about a value, in the terms of a settings file.
/// Returns `None` for other messages.
pub(super) fn describe_parse_error(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let mut names = rest.split('`').step_by(2);
        let unknown = names.next()?;
        let suggestion = suggest_name(unknown, names);
        return Some(format!("`{unknown}` is not a value of this setting{suggestion}"));
    }
    let (_, expected) = message.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    let form = match expected {
        "a sequence" => "a list, such as `[\"localhost:9101\"]`",
        "a string" => "a text in quotes",
        "a boolean" => "`true` or `false`, without quotes",
        "u16" | "u32" | "u64" | "usize" => "a whole number, without quotes",
        _ => return None,
    };
    Some(format!("the value of a setting has the wrong type; write {form}"))
}

/// Returns an error message about the first name in `table` that its `schema` does not have, with
/// the most similar known name. `place` is the path of the table in the settings file, and is empty
/// for the complete file.
fn describe_unknown_name(table: &toml::Table, schema: &Value, place: &str) -> Option<String> {
    let known = schema["properties"].as_object()?;
    let is_closed = schema["additionalProperties"] == false;
    table.iter().find_map(|(name, value)| {
        let path = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        let Some(schema) = known.get(name) else {
            let suggestion = suggest_name(name, known.keys().map(String::as_str));
            return is_closed.then(|| format!("`{path}` is not a setting{suggestion}"));
        };
        match (value, list_item_schema(schema)) {
            (toml::Value::Table(inner), None) => describe_unknown_name(inner, schema, &path),
            (toml::Value::Array(tables), Some(schema)) => {
                let mut tables = tables.iter().filter_map(toml::Value::as_table);
                tables.find_map(|inner| describe_unknown_name(inner, schema, &path))
            }
            (_, _) => None,
        }
    })
}

/// Returns a text that suggests the most similar of the `known` names for `name`, or an empty text
/// if none is similar.
fn suggest_name<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> String {
    let rated = known.map(|known| (strsim::normalized_damerau_levenshtein(name, known), known));
    let close = rated.filter(|(similarity, _)| *similarity > SIMILARITY_MIN);
    let best = close.max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default()
}

/// Returns an error message about the correct form of the list of tables `name`, or `None` if
/// `value` is a list.
fn describe_list_error(name: &str, value: &toml::Value) -> Option<String> {
    let is_table = if value.is_table() { format!(", not `[{name}]`") } else { String::new() };
    (!value.is_array())
        .then(|| format!("`{name}` is a list of tables: write `[[{name}]]`{is_table}"))
}

/// Describes the type of a setting with the JSON Schema `schema`, ignoring `null`.
fn type_name(schema: &Value) -> String {
    let named = match &schema["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        one => one.as_str(),
    };
    match (named, schema["anyOf"].as_array()) {
        (Some("array"), _) => {
            format!("list of {}s", schema["items"]["type"].as_str().unwrap_or("string"))
        }
        (Some("object"), _) => "table of strings".to_owned(),
        (Some(kind), _) => kind.to_owned(),
        (None, Some(any)) => {
            let mut kinds: Vec<_> = any.iter().map(type_name).filter(|it| it != "null").collect();
            kinds.dedup();
            kinds.join(" or ")
        }
        // A type that is absent here is an optional string.
        (None, None) => "string".to_owned(),
    }
}

/// Returns the JSON Schema of the settings file.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".into(), SETTINGS_FILE_NAME.into());
    }
    schema
}

/// Returns the settings reference, in Markdown.
pub fn reference() -> String {
    let mut page = String::from(
        "# Settings: the configuration file toolgate.toml\n\n\
         <!-- Generated by `cargo xtask codegen` from crates/service/src/config.rs; edit that. -->\n\n\
         Every setting is optional. The command line overrides the environment, and the environment \
         overrides the file. The file is `--config FILE`, or `toolgate.toml` in the workspace. Tools \
         cannot write the file. A file that does more than restrict tools takes effect after you \
         run `toolgate trust`. After each edit of the file, run `toolgate trust` again. \
         [config.schema.json](config.schema.json) is the JSON Schema of the file. `toolgate \
         check-config` validates a file and prints the effective settings.\n",
    );
    let mut settings = settings();
    for (section, body) in schema()["properties"].as_object().into_iter().flatten() {
        if let Some(fields) = list_item_schema(body) {
            write_tables(&mut page, &format!("[{section}]"), body, fields);
            continue;
        }
        if let Some(fields) = map_item_schema(body) {
            write_tables(&mut page, &format!("{section}.NAME"), body, fields);
            continue;
        }
        let in_section = settings.extract_if(.., |setting| setting.path[0] == *section);
        let in_section: Vec<SettingSpec> = in_section.collect();
        if !in_section.is_empty() {
            let _ = write!(page, "\n## [{section}]\n\n{}\n", description(body));
        }
        for setting in in_section {
            let _ = write!(
                page,
                "\n### `{}`\n\n{}\n\n- type: {}\n- default: {}\n- environment: `{}`\n",
                setting.path[1],
                description(&setting.schema),
                setting.type_text(),
                default_text(&setting.default),
                setting.env
            );
        }
        for (name, inner) in body["properties"].as_object().into_iter().flatten() {
            if let Some(fields) = list_item_schema(inner) {
                write_tables(&mut page, &format!("[{section}.{name}]"), inner, fields);
            }
        }
    }
    page
}

/// Adds the reference of the tables `[path]` to `page`. These tables are entries of a list, or
/// tables with a name. `body` is the JSON Schema of the setting, and `fields` that of one table.
fn write_tables(page: &mut String, path: &str, body: &Value, fields: &Value) {
    let about_all = match description(body) {
        "" => description(fields),
        about => about,
    };
    let _ = write!(page, "\n## [{path}]\n\n{about_all}\n");
    let required = fields["required"].as_array().map_or(&[][..], Vec::as_slice);
    let mut inner = Vec::new();
    for (name, schema) in fields["properties"].as_object().into_iter().flatten() {
        if let Some(table) = table_schema(schema) {
            inner.push((name, table));
            continue;
        }
        let field = SettingSpec {
            path: [path.to_owned(), name.clone()],
            env: String::new(),
            schema: schema.clone(),
            default: schema["default"].clone(),
        };
        let default = match required.iter().any(|required| required == name) {
            true => "none; required".to_owned(),
            false => default_text(&field.default),
        };
        let _ = write!(
            page,
            "\n### `{name}`\n\n{}\n\n- type: {}\n- default: {default}\n",
            description(schema),
            field.type_text(),
        );
    }
    for (name, table) in inner {
        write_tables(page, &format!("{path}.{name}"), table, table);
    }
}

/// Returns the schema of each table in a setting, if `schema` is a list of tables.
fn list_item_schema(schema: &Value) -> Option<&Value> {
    Some(&schema["items"]).filter(|items| items["properties"].is_object())
}

/// Returns the schema of each table in a setting, if `schema` is a map of tables.
fn map_item_schema(schema: &Value) -> Option<&Value> {
    Some(&schema["additionalProperties"]).filter(|table| table["properties"].is_object())
}

/// Returns the schema of the table, if a setting with the schema `schema` may be a table.
fn table_schema(schema: &Value) -> Option<&Value> {
    let any = schema["anyOf"].as_array().map_or(&[][..], Vec::as_slice);
    any.iter().chain([schema]).find(|choice| choice["properties"].is_object())
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

fn default_text(default: &Value) -> String {
    if default.is_null() { "none".to_owned() } else { format!("`{default}`") }
}
