//! Keeps additions of the user when a settings entry of toolgate is replaced: arguments, and
//! settings such as `env`.

use std::path::Path;

use clap::{Args, Command};
use serde_json::Value;

use crate::cli::stdio::StdioArgs;

/// Copies the user's additions from `present`, the old settings entry for toolgate, to `entry`, the
/// new one. Returns a note about the additions, or `None` if there are none. Copies nothing if one
/// of the entries does not start `toolgate stdio`.
pub(super) fn keep_user_additions(entry: &mut Value, present: &Value) -> Option<String> {
    let old = stdio_args(present)?;
    let new = stdio_args(entry)?;
    let (folder, options) = new.split_first()?;
    let place = folder_position(&old);
    let mut kept: Vec<String> = Vec::new();
    let extra = old.iter().enumerate().filter(|(at, _)| Some(*at) != place);
    let extra: Vec<&str> = extra.map(|(_, arg)| arg.as_str()).collect();
    if !extra.is_empty() {
        kept.push(format!("the arguments `{}`", extra.join(" ")));
    }
    let mut args = old.clone();
    match place {
        Some(at) => args[at].clone_from(folder),
        None => args.insert(0, folder.clone()),
    }
    args.extend(options.iter().filter(|option| !old.contains(option)).cloned());
    args.insert(0, "stdio".to_owned());
    let fields = entry.as_object_mut()?;
    fields.insert("args".to_owned(), args.into());
    for (name, value) in present.as_object()? {
        if !fields.contains_key(name) {
            fields.insert(name.clone(), value.clone());
            kept.push(format!("`{name}`"));
        }
    }
    (!kept.is_empty()).then(|| format!("kept from the earlier entry: {}", kept.join(", ")))
}

/// Returns the arguments after `stdio`, or `None` if the settings entry `entry` does not start
/// `toolgate stdio`.
fn stdio_args(entry: &Value) -> Option<Vec<String>> {
    let program = Path::new(entry.get("command")?.as_str()?).file_name()?;
    let args = entry.get("args")?.as_array()?.iter();
    let args: Vec<String> =
        args.map(|arg| arg.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    let (first, rest) = args.split_first()?;
    (program == "toolgate" && first == "stdio").then(|| rest.to_vec())
}

/// Returns the index of the served folder in `args`, the arguments of `toolgate stdio`, or `None`
/// if the arguments name no folder.
fn folder_position(args: &[String]) -> Option<usize> {
    let command = StdioArgs::augment_args(Command::new("stdio"));
    let takes_value = |arg: &str| {
        let mut options = command.get_arguments().filter(|it| it.get_action().takes_values());
        arg.strip_prefix("--").is_some_and(|name| options.any(|it| it.get_long() == Some(name)))
    };
    let mut is_value = false;
    args.iter().position(|arg| {
        let is_folder = !is_value && !arg.starts_with('-');
        is_value = !is_value && takes_value(arg);
        is_folder
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_and_settings_of_the_user_are_kept_around_the_new_folder() {
        for (old, options, expected) in [
            (
                json!(["stdio", "/a", "--read-only"]),
                json!([]),
                json!(["stdio", "/b", "--read-only"]),
            ),
            (
                json!(["stdio", "--read-only", "/a"]),
                json!([]),
                json!(["stdio", "--read-only", "/b"]),
            ),
            (
                json!(["stdio", "--config", "/c", "/a"]),
                json!(["--read-only"]),
                json!(["stdio", "--config", "/c", "/b", "--read-only"]),
            ),
            (
                json!(["stdio", "--read-only"]),
                json!(["--read-only"]),
                json!(["stdio", "/b", "--read-only"]),
            ),
        ] {
            let mut args = vec![json!("stdio"), json!("/b")];
            args.extend(options.as_array().cloned().unwrap_or_default());
            let mut entry = json!({"command": "/bin/toolgate", "args": args});
            let present = json!({"command": "toolgate", "args": old, "env": {"A": "b"}});
            let note = keep_user_additions(&mut entry, &present).expect("there are additions");
            assert!(note.ends_with("`env`"), "{note}");
            let whole = json!({"command": "/bin/toolgate", "args": expected, "env": {"A": "b"}});
            assert_eq!(entry, whole, "{old}");
        }
    }

    #[test]
    fn nothing_is_kept_of_an_entry_of_another_program_or_a_url() {
        for present in [
            json!({"url": "http://127.0.0.1:8000/mcp", "headers": {}}),
            json!({"command": "npx", "args": ["stdio", "/a", "--x"], "env": {}}),
            json!({"command": "toolgate", "args": ["stdio", "/a"]}),
        ] {
            let mut entry = json!({"command": "/bin/toolgate", "args": ["stdio", "/b"]});
            let before = entry.clone();
            assert_eq!(keep_user_additions(&mut entry, &present), None);
            assert_eq!(entry, before, "{present}");
        }
    }
}
