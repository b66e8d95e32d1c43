//! Page of the console with the settings in force, their origin, and the changes that a reload
//! would make.

use maud::{Markup, html};
use toolgate_contract::{ToolId, printable};
use toolgate_net::spawn_blocking;

use super::notice;
use crate::config::restart::changed_settings;
use crate::config::{Config, environment};
use crate::console::layout::{ConsolePage, scrolling_table};
use crate::console::{SettingsPreview, WebConsole};

/// Sections of the settings whose values may contain secrets. The console shows only the names of
/// their entries.
const PRIVATE_SECTIONS: [&str; 4] = ["upstream", "keys", "oauth", "secrets"];

/// Maximum number of settings in one table of the console. Settings may contain thousands of
/// commands.
const ROWS_MAX: usize = 100;
/// Maximum number of characters of a setting's value that the console shows.
const VALUE_CHARS_MAX: usize = 300;

pub(super) async fn page(console: &WebConsole) -> Option<ConsolePage<'static>> {
    let compare = console.sources.preview_settings.clone();
    let preview = spawn_blocking(move || compare()).await;
    let settings = (console.sources.settings)();
    let changed = changed_settings(&Config::default(), &settings);
    let table = settings.to_table();
    let content = html! {
        p {
            "The server applies changes to its settings file automatically. To check a file \
             first, run "
            code { "toolgate check-config" } "."
        }
        @match &preview {
            Ok(Ok(Some(preview))) => (changes(&table, preview)),
            Ok(Err(why)) => {
                h2 { "The settings file cannot be applied" }
                (notice(&format!("{why:#}")))
                p { "The settings below stay active until the file is correct." }
            }
            Ok(Ok(None)) | Err(_) => {}
        }
        h2 { "In force" }
        @if changed.is_empty() {
            p { "Every setting has its default." }
        } @else {
            (settings_table(&table, &changed))
        }
        p .hint { "All other settings have their defaults, which the reference of settings lists." }
    };
    Some(ConsolePage {
        title: "Settings".to_owned(),
        section: "/console/settings",
        live: "",
        content,
    })
}

/// Returns the differences in HTML between the settings in force, `table`, and the settings in the
/// file, `preview`.
fn changes(table: &toml::Table, preview: &SettingsPreview) -> Markup {
    let SettingsPreview { next, applied, waiting, added, removed } = preview;
    let next = next.to_table();
    let rows = applied.iter().map(|name| (name, "at the next reload"));
    let rows: Vec<_> = rows.chain(waiting.iter().map(|name| (name, "after a restart"))).collect();
    html! {
        @if rows.is_empty() {
            p { "A reload would change nothing: all settings in the file are active." }
        } @else {
            h2 { "Changes that are not active yet" }
            (scrolling_table(&html! {
                th { "Setting" } th { "In force" } th { "In the file" } th { "Applies" }
            }, &html! {
                @for (name, time) in rows.iter().take(ROWS_MAX) {
                    tr {
                        td { code { (name) } }
                        td { (value(table, name)) }
                        td { (value(&next, name)) }
                        td { (time) }
                    }
                }
            }))
            (others(rows.len()))
            (tools("Tools that a reload adds", added))
            (tools("Tools that a reload removes", removed))
        }
    }
}

fn tools(title: &str, ids: &[ToolId]) -> Markup {
    html! {
        @if !ids.is_empty() {
            h2 { (title) }
            ul { @for id in ids { li { code { (id.as_str()) } } } }
        }
    }
}

fn settings_table(table: &toml::Table, changed: &[String]) -> Markup {
    let variables = environment();
    let origin = |name: &str| {
        let variable = format!("TOOLGATE_{}", name.replace('.', "_").to_uppercase());
        match variables.iter().any(|(set, _)| set.to_str() == Some(variable.as_str())) {
            true => variable,
            false => "settings file or command line".to_owned(),
        }
    };
    html! {
        (scrolling_table(&html! {
            th { "Setting" } th { "Value" } th { "From" }
        }, &html! {
            @for name in changed.iter().take(ROWS_MAX) {
                tr {
                    td { code { (name) } }
                    td { (value(table, name)) }
                    td { (origin(name)) }
                }
            }
        }))
        (others(changed.len()))
    }
}

/// Returns a note in HTML that a table omits settings because it would have more than [`ROWS_MAX`]
/// rows. `count` is the number of all settings.
fn others(count: usize) -> Markup {
    html! {
        @if count > ROWS_MAX {
            p { "And " (count - ROWS_MAX) " others, which " code { "toolgate check-config" } " prints." }
        }
    }
}

/// Returns the value of the setting `name` in HTML. For settings that may contain secrets, returns
/// the word `set` instead.
fn value(table: &toml::Table, name: &str) -> Markup {
    let (section, key) = name.split_once('.').unwrap_or((name, ""));
    if PRIVATE_SECTIONS.contains(&section) {
        return html! { span .muted { "set" } };
    }
    let value = table.get(section).and_then(|section| match key {
        "" => Some(section),
        key => section.get(key),
    });
    html! {
        @match value {
            Some(value) => pre { (shorten(value)) },
            None => "not set",
        }
    }
}

/// Returns a setting's value as text, shortened to [`VALUE_CHARS_MAX`] characters.
fn shorten(value: &toml::Value) -> String {
    printable::shorten(&value.to_string(), VALUE_CHARS_MAX).into_owned()
}
