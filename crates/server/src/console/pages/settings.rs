//! Settings in force, where each comes from, and what a reload would change.

use maud::{Markup, html};
use tokio::task::spawn_blocking;
use toolgate_contract::ToolId;

use super::notice;
use crate::config::restart::changed_settings;
use crate::config::{Config, environment};
use crate::console::layout::ConsolePage;
use crate::console::{Console, SettingsPreview};

/// Sections whose values may contain secrets. Only the names of their entries are shown.
const PRIVATE_SECTIONS: [&str; 4] = ["upstream", "keys", "oauth", "secrets"];

pub(super) async fn page(console: &Console) -> Option<ConsolePage<'static>> {
    let compare = console.sources.preview_settings.clone();
    let preview = spawn_blocking(move || compare()).await;
    let settings = (console.sources.settings)();
    let changed = changed_settings(&Config::default(), &settings);
    let table = toml::Table::try_from(&settings).unwrap_or_default();
    let content = html! {
        p {
            "The server applies changes of its settings file by itself. To check a file first, run "
            code { "toolgate check-config" } "."
        }
        @match &preview {
            Ok(Ok(Some(preview))) => (changes(&table, preview)),
            Ok(Err(why)) => {
                h2 { "The settings file cannot be applied" }
                (notice(&format!("{why:#}")))
                p { "The settings below stay in force until the file is correct." }
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

/// Returns the differences between the settings in force, in `table`, and those in the file.
fn changes(table: &toml::Table, preview: &SettingsPreview) -> Markup {
    let SettingsPreview { next, applied, waiting, added, removed } = preview;
    let next = toml::Table::try_from(next).unwrap_or_default();
    let rows = applied.iter().map(|name| (name, "at the next reload"));
    let rows: Vec<_> = rows.chain(waiting.iter().map(|name| (name, "after a restart"))).collect();
    html! {
        @if rows.is_empty() {
            p { "A reload would change nothing: the settings file is in force." }
        } @else {
            h2 { "Changes that are not in force yet" }
            div .scroll {
                table {
                    thead {
                        tr { th { "Setting" } th { "In force" } th { "In the file" } th { "Applies" } }
                    }
                    tbody {
                        @for (name, time) in &rows {
                            tr {
                                td { code { (name) } }
                                td { (value(table, name)) }
                                td { (value(&next, name)) }
                                td { (time) }
                            }
                        }
                    }
                }
            }
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
        div .scroll {
            table {
                thead { tr { th { "Setting" } th { "Value" } th { "From" } } }
                tbody {
                    @for name in changed {
                        tr {
                            td { code { (name) } }
                            td { (value(table, name)) }
                            td { (origin(name)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the value of the setting `name`, unless it may be secret.
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
            Some(value) => pre { (value) },
            None => "not set",
        }
    }
}
