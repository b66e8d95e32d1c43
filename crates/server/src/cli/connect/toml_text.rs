//! Edits TOML without changing the rest of the text.

use std::ops::Range;

use anyhow::{anyhow, bail, ensure};
use serde_json::Value;
use similar::DiffOp;
use toml_edit::{Array, DocumentMut, InlineTable, Item, RawString, Table, Value as TomlValue};
use toolgate_contract::diff_lines;

/// Parses the TOML `text`, and returns its content as JSON.
///
/// # Errors
/// The text is invalid. The error names the line and the column.
pub(super) fn parse(text: &str) -> anyhow::Result<Value> {
    let table = text.parse::<toml::Table>();
    let table = table.map_err(|err| syntax_error(text, err.span(), err.message()))?;
    Ok(serde_json::to_value(table)?)
}

/// Returns the TOML `text` in which `entry` is the table `name` of the table `table`. A new table
/// is appended to the text, so that all other tables keep their comments.
///
/// # Errors
/// The text is invalid, or `table` is not a table.
pub(super) fn set(text: &str, table: &str, name: &str, entry: &Value) -> anyhow::Result<String> {
    let document = parse_document(&text.replace("\r\n", "\n"))?;
    let is_new = match document.get(table) {
        None => true,
        Some(Item::Table(servers)) => !servers.contains_key(name),
        Some(_) => false,
    };
    if is_new {
        return append(text, table, name, entry);
    }
    edit(text, |document| insert(document, table, name, entry))
}

/// Returns the TOML `text` without the table `name` of the table `table`. Keeps the comments above
/// the removed table, because they may belong to the lines before it.
///
/// # Errors
/// The text is invalid.
pub(super) fn remove(text: &str, table: &str, name: &str) -> anyhow::Result<String> {
    let mut comments = String::new();
    let edited = edit(text, |document| {
        let servers = document.get_mut(table).and_then(Item::as_table_like_mut);
        if let Some(Item::Table(removed)) = servers.and_then(|servers| servers.remove(name))
            && let Some(prefix) = removed.decor().prefix().and_then(RawString::as_str)
            && prefix.contains('#')
        {
            comments = format!("{}\n", prefix.trim_end());
        }
        Ok(())
    })?;
    let lines = text.split_inclusive('\n').zip(edited.split_inclusive('\n'));
    let same = lines.take_while(|(old, new)| old == new).map(|(old, _)| old.len()).sum::<usize>();
    let (before, after) = edited.split_at(same);
    Ok(format!("{before}{}{after}", comments.replace('\n', line_end(text))))
}

/// Returns the TOML `text` with `entry` appended as the table `[table.name]`. `table` and `name`
/// are the keys of that table.
fn append(text: &str, table: &str, name: &str, entry: &Value) -> anyhow::Result<String> {
    let mut addition = DocumentMut::new();
    insert(&mut addition, table, name, entry)?;
    let line_end = line_end(text);
    let gap = match text {
        "" => String::new(),
        text if text.ends_with('\n') => line_end.to_owned(),
        _ => line_end.repeat(2),
    };
    let addition = addition.to_string();
    Ok(format!("{text}{gap}{}", addition.trim_start().replace('\n', line_end)))
}

/// Sets the table `[table.name]` of the TOML `document` to `entry`. An existing table keeps its
/// position. Fails if the value of the key `table` is not a table.
fn insert(
    document: &mut DocumentMut,
    table: &str,
    name: &str,
    entry: &Value,
) -> anyhow::Result<()> {
    let servers = document.entry(table).or_insert_with(|| {
        let mut servers = Table::new();
        servers.set_implicit(true);
        Item::Table(servers)
    });
    match servers {
        Item::Table(servers) => {
            let mut added = toml_table(entry)?;
            if let Some(Item::Table(old)) = servers.get(name) {
                *added.decor_mut() = old.decor().clone();
                added.set_position(old.position());
            }
            servers.insert(name, Item::Table(added));
        }
        Item::Value(TomlValue::InlineTable(servers)) => {
            servers.insert(name, toml_value(entry)?);
        }
        Item::None | Item::Value(_) | Item::ArrayOfTables(_) => bail!("`{table}` is not a table"),
    }
    Ok(())
}

/// Returns the line end that `text` uses: LF or CRLF.
fn line_end(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

fn parse_document(unix: &str) -> anyhow::Result<DocumentMut> {
    let document = unix.parse::<DocumentMut>();
    document.map_err(|err| syntax_error(unix, err.span(), err.message()))
}

/// Applies `change` to the TOML `text`. Returns the new text, in which unchanged lines keep their
/// exact bytes. Fails if the text is invalid, or if `change` fails.
fn edit(
    text: &str,
    change: impl FnOnce(&mut DocumentMut) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    // toml_edit writes every line with LF.
    let unix = text.replace("\r\n", "\n");
    let mut document = parse_document(&unix)?;
    let same = document.to_string();
    ensure!(
        same == unix || same.strip_suffix('\n') == Some(unix.as_str()),
        "the file cannot be edited without changing other parts of it"
    );
    change(&mut document)?;
    Ok(with_line_ends_of(text, &unix, &document.to_string()))
}

/// Returns an error with the line and column of a TOML syntax error. The error does not quote the
/// text, which may contain a secret.
fn syntax_error(text: &str, span: Option<Range<usize>>, message: &str) -> anyhow::Error {
    let before = &text[..span.map_or(0, |span| text.floor_char_boundary(span.start))];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    anyhow!("{} in line {line}, column {column}", message.replace('\n', ", "))
}

/// Returns `new` with the line ends of the original `text`: LF or CRLF. `unix` is the original text
/// with LF as its only line end.
fn with_line_ends_of(text: &str, unix: &str, new: &str) -> String {
    if text == unix {
        return new.to_owned();
    }
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let new_lines: Vec<&str> = new.split_inclusive('\n').collect();
    let unix_lines: Vec<&str> = unix.split_inclusive('\n').collect();
    let mut written = String::with_capacity(new.len());
    for op in diff_lines(&unix_lines, &new_lines, None) {
        match op {
            DiffOp::Equal { .. } => written.extend(lines[op.old_range()].iter().copied()),
            DiffOp::Delete { .. } => {}
            DiffOp::Insert { .. } | DiffOp::Replace { .. } => {
                for line in &new_lines[op.new_range()] {
                    written += &line.replace('\n', "\r\n");
                }
            }
        }
    }
    written
}

fn toml_table(entry: &Value) -> anyhow::Result<Table> {
    let mut table = Table::new();
    for (name, value) in entry.as_object().into_iter().flatten() {
        table.insert(name, Item::Value(toml_value(value)?));
    }
    Ok(table)
}

fn toml_value(value: &Value) -> anyhow::Result<TomlValue> {
    Ok(match value {
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => {
            let items = items.iter().map(toml_value).collect::<anyhow::Result<Array>>()?;
            TomlValue::Array(items)
        }
        Value::Object(members) => {
            let mut table = InlineTable::new();
            for (name, value) in members {
                table.insert(name, toml_value(value)?);
            }
            TomlValue::InlineTable(table)
        }
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => bail!("the number {number} cannot be written as TOML"),
        },
        Value::Null => bail!("TOML has no null"),
    })
}
