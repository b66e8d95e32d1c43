//! Settings in force, and where each comes from.

use maud::{Markup, html};

use crate::config::restart::changed_settings;
use crate::config::{Config, environment};
use crate::console::Console;
use crate::console::layout::ConsolePage;

/// Sections whose values may contain secrets. Only the names of their entries are shown.
const PRIVATE_SECTIONS: [&str; 4] = ["upstream", "keys", "oauth", "secrets"];

pub(super) fn page(console: &Console) -> Option<ConsolePage<'static>> {
    let settings = (console.sources.settings)();
    let changed = changed_settings(&Config::default(), &settings);
    let table = toml::Table::try_from(&settings).unwrap_or_default();
    let content = html! {
        p {
            "The server applies changes of its settings file by itself. Its log names the settings \
             that need a restart. To check a file first, run " code { "toolgate check-config" } "."
        }
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
