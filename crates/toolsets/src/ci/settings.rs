//! What the owner of the server decides about building and testing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How projects are built and tested. Which programs may be run is said in `[exec]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Variables of the server's own environment that build tools get beside those of
    /// `exec.env_keep`: where they and their caches are.
    pub env_keep: Vec<String>,
    /// How long a build or a test run may take when the call does not say, at most 600000.
    pub timeout_ms: u64,
    /// How much of the end of what a build tool prints a result shows when the call does not say.
    pub output_bytes: usize,
    /// How many failures a result lists.
    pub failures_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let env_keep = [
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "DOTNET_ROOT",
            "GOCACHE",
            "GOMODCACHE",
            "GOPATH",
            "GRADLE_USER_HOME",
            "JAVA_HOME",
            "NUGET_PACKAGES",
            "PYENV_ROOT",
            "RUSTUP_HOME",
            "RUSTUP_TOOLCHAIN",
            "VIRTUAL_ENV",
            "XDG_CACHE_HOME",
        ];
        Self {
            env_keep: env_keep.map(str::to_owned).into(),
            timeout_ms: 600_000,
            output_bytes: 8 << 10,
            failures_max: 50,
        }
    }
}
