//! Environment variables that keep package managers from waiting for a network that is not
//! available.

use toolgate_world::sandbox::ProgramConfinement;

/// Environment variables that keep package managers from retrying failed downloads. Without a
/// network, retries only delay the failure by minutes.
pub(crate) const OFFLINE_VARIABLES: [(&str, &str); 5] = [
    ("npm_config_fetch_retries", "0"),
    ("YARN_HTTP_RETRY", "0"),
    ("PIP_RETRIES", "0"),
    ("UV_HTTP_RETRIES", "0"),
    ("CARGO_NET_RETRY", "0"),
];

/// Names of package managers that retry failed downloads.
const PACKAGE_MANAGERS: [&str; 11] =
    ["npm", "npx", "pnpm", "pnpx", "yarn", "pip", "pip3", "uv", "uvx", "cargo", "poetry"];

/// Returns [`OFFLINE_VARIABLES`] if a program confined by `confinement` has no network, and one of
/// `words`, its command line, names a package manager. Otherwise returns an empty slice.
pub(super) fn offline_variables<'w>(
    confinement: Option<&ProgramConfinement>,
    words: impl IntoIterator<Item = &'w str>,
) -> &'static [(&'static str, &'static str)] {
    let is_offline = confinement.is_some_and(|confinement| !confinement.has_network());
    match is_offline && words.into_iter().any(names_package_manager) {
        true => &OFFLINE_VARIABLES,
        false => &[],
    }
}

/// Returns true if a word in `text` is the name of a package manager. `text` may be a script or a
/// path.
fn names_package_manager(text: &str) -> bool {
    let is_end = |c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c));
    text.split(is_end).any(|word| PACKAGE_MANAGERS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_managers_are_found_in_paths_and_scripts() {
        for text in ["npm", "/usr/bin/npm", "cd web && npm ci", "-m pip install x", "(uvx ruff)"] {
            assert!(names_package_manager(text), "{text}");
        }
        for text in ["", "npm-run-all", "pipes", "cat npm.log", "node"] {
            assert!(!names_package_manager(text), "{text}");
        }
    }
}
