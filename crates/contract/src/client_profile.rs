//! Profiles of MCP clients that need a list of tools of their own, because they limit or search
//! long lists.

/// A known MCP client, and the list of tools that suits it.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientProfile {
    /// Start of the name that the client sends in `clientInfo`, in lower case.
    pub name: &'static str,
    /// Largest number of tools that this client gets as one complete list.
    pub tools_max: usize,
    /// True if the client searches tools itself. The context of its model then contains only the
    /// names of the tools.
    pub has_search: bool,
}

/// Clients that have a profile. The tool lists of all other clients depend only on their number of
/// tokens.
static PROFILES: [ClientProfile; 3] = [
    // Claude Code keeps the names in the context, about 20 tokens each.
    ClientProfile { name: "claude-code", tools_max: 400, has_search: true },
    // Requests of VS Code with more tools fail.
    ClientProfile { name: "visual studio code", tools_max: 128, has_search: false },
    // Cascade passes on no more tools than these.
    ClientProfile { name: "windsurf", tools_max: 100, has_search: false },
];

impl ClientProfile {
    /// Returns the profile of the client that calls itself `name`, if it has one.
    pub fn find(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| {
            let start = name.get(..profile.name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(profile.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_recognized_by_the_start_of_its_name() {
        for (name, known) in [
            ("claude-code", Some("claude-code")),
            ("Visual Studio Code - Insiders", Some("visual studio code")),
            ("windsurf-client", Some("windsurf")),
            ("claude", None),
            ("ähnlich", None),
            ("", None),
        ] {
            assert_eq!(ClientProfile::find(name).map(|it| it.name), known, "{name}");
        }
    }
}
