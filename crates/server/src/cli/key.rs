//! Creates, lists, rotates and revokes API keys (`toolgate key`).

mod lifetime;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use toolgate_service::config::{self, ApiKey, Config, ServerSection, key_file};

use super::{complain, print};

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  toolgate key new ci                   create a key for `ci` that all your servers accept
  toolgate key new ci --role builder --expires 90d
                                        create a key with a role that is valid for 90 days
  toolgate key list                     list the keys
  toolgate key rotate ci                create another key for `ci`; old keys expire in a day
  toolgate key revoke 4b0c9e            remove the key whose digest begins with 4b0c9e
  toolgate key ci >> toolgate.toml      create a key for this folder's configuration only

A key is shown only once, when it is created; toolgate stores its digest. Clients send it as
`Authorization: Bearer KEY` or `X-API-Key: KEY`. As soon as one key exists, every request over HTTP
needs a key."
)]
pub(super) struct KeyCommandArgs {
    #[command(subcommand)]
    command: Option<KeyCommand>,
    /// Caller's name in policy, limits, jobs and the audit log. `toolgate key NAME` prints the
    /// configuration lines of a key, and does not write the key file
    #[arg(required = true)]
    name: Option<String>,
    /// Name after a misspelled command
    #[arg(hide = true)]
    excess: Option<String>,
}

#[derive(clap::Subcommand)]
enum KeyCommand {
    /// Create a key and write its digest to the key file
    New {
        /// Caller's name in policy, limits, jobs and the audit log
        name: String,
        /// Role of the caller, for policy rules
        #[arg(long = "role", value_name = "ROLE")]
        roles: Vec<String>,
        /// Lifetime of the key, such as 90d, 12h or 30m; by default, the key does not expire
        #[arg(long, value_name = "TIME", value_parser = lifetime::parse_duration)]
        expires: Option<Duration>,
        #[command(flatten)]
        file: KeyFileArg,
    },
    /// List the keys in the key file
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        file: KeyFileArg,
    },
    /// Create a new key for a caller and let the caller's old keys expire
    Rotate {
        /// Name of the caller
        name: String,
        /// Time for which the old keys stay valid
        #[arg(long, value_name = "TIME", default_value = "1d", value_parser = lifetime::parse_duration)]
        overlap: Duration,
        /// Lifetime of the new key; by default, the same lifetime as the newest old key
        #[arg(long, value_name = "TIME", value_parser = lifetime::parse_duration)]
        expires: Option<Duration>,
        #[command(flatten)]
        file: KeyFileArg,
    },
    /// Remove keys from the key file
    Revoke {
        /// Beginning of the key's digest, from the output of `list`
        #[arg(required_unless_present = "name")]
        prefix: Option<String>,
        /// Remove all keys of this caller, instead of one key
        #[arg(long, conflicts_with = "prefix")]
        name: Option<String>,
        #[command(flatten)]
        file: KeyFileArg,
    },
}

/// Command-line option that names the key file.
#[derive(clap::Args)]
struct KeyFileArg {
    /// Key file, as in `server.keys_file`
    #[arg(long, value_name = "FILE", env = "TOOLGATE_SERVER_KEYS_FILE", default_value = "state")]
    keys_file: String,
}

/// Number of digits of a key's digest that `toolgate key` shows.
const DIGEST_SHOWN: usize = 12;
/// Minimum number of digits at the beginning of a digest that identify a key.
const PREFIX_MIN: usize = 4;
/// Names of the commands of `toolgate key`, for suggestions.
const COMMANDS: [&str; 4] = ["new", "list", "rotate", "revoke"];
/// Largest edit distance between a typed word and the command that an error suggests.
const EDITS_MAX: usize = 1;

pub(super) fn run(args: &KeyCommandArgs) -> anyhow::Result<ExitCode> {
    match (&args.command, &args.name) {
        (Some(KeyCommand::New { name, roles, expires, file }), _) => {
            new_key(&file.path()?, name, roles, *expires)
        }
        (Some(KeyCommand::List { json, file }), _) => list(&file.path()?, *json),
        (Some(KeyCommand::Rotate { name, overlap, expires, file }), _) => {
            rotate(&file.path()?, name, *overlap, *expires)
        }
        (Some(KeyCommand::Revoke { prefix, name, file }), _) => {
            revoke(&file.path()?, prefix.as_deref(), name.as_deref())
        }
        (None, Some(typed)) => match &args.excess {
            Some(name) => Err(unknown_command(typed, name)),
            None => print_config_lines(typed),
        },
        (None, None) => bail!("the name of the caller is missing; see `toolgate key --help`"),
    }
}

/// Returns the error that the word `typed`, which was followed by `name`, is not a command of
/// `toolgate key`.
fn unknown_command(typed: &str, name: &str) -> anyhow::Error {
    let advice = match nearest_command(typed) {
        Some("list") => "did you mean `toolgate key list`?".to_owned(),
        Some(command) => format!("did you mean `toolgate key {command} {name}`?"),
        None => format!("the commands are {}", COMMANDS.join(", ")),
    };
    anyhow!("`{typed}` is not a command of `toolgate key`; {advice}")
}

/// Returns the command of `toolgate key` that resembles the word `typed`, or `None` if no command
/// does.
fn nearest_command(typed: &str) -> Option<&'static str> {
    let distance = |command: &str| strsim::damerau_levenshtein(typed, command);
    let nearest = COMMANDS.into_iter().min_by_key(|command| distance(command))?;
    (distance(nearest) <= EDITS_MAX).then_some(nearest)
}

impl KeyFileArg {
    fn path(&self) -> anyhow::Result<PathBuf> {
        let server =
            ServerSection { keys_file: self.keys_file.clone(), ..ServerSection::default() };
        key_file::path(&server)?.context("there is no key file; name one with --keys-file")
    }
}

fn new_key(
    file: &Path,
    name: &str,
    roles: &[String],
    expires: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let (secret, key) = create_key(name)?;
    let expires = expires.map(lifetime::time_from_now).transpose()?;
    let key = ApiKey { roles: roles.to_vec(), expires, ..key };
    for role in roles {
        if let Some(warning) = unknown_role(role) {
            complain(&warning);
        }
    }
    key_file::change_keys(file, |keys| {
        keys.push(key);
        Ok(())
    })?;
    complain(&format!(
        "created a key for `{name}`. toolgate shows the key only once. Running servers accept the \
         key within seconds, because its digest is in {}",
        file.display()
    ));
    print(&format!("{secret}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a warning if this folder's settings have policy rules with roles, but no rule with
/// `role`, the role of a new key. Returns `None` if no rule has roles, because the server's
/// settings may be in another folder.
fn unknown_role(role: &str) -> Option<String> {
    // The roles `admin` and `console` open the console without a rule.
    if matches!(role, "admin" | "console") {
        return None;
    }
    let file = Path::new(config::SETTINGS_FILE_NAME);
    let text = config::trust::read_settings_text(file).ok()?;
    let settings: Config = toml::from_str(&text).ok()?;
    let patterns = settings.policy.rules.iter().flat_map(|rule| &rule.roles);
    let mut patterns: Vec<&str> = patterns.map(String::as_str).collect();
    let is_named = |pattern: &&str| *pattern == role || pattern.contains(['*', '?']);
    if patterns.is_empty() || patterns.iter().any(is_named) {
        return None;
    }
    patterns.sort_unstable();
    patterns.dedup();
    Some(format!(
        "no rule of {} names the role `{role}`; the roles there are {}",
        file.display(),
        patterns.join(", ")
    ))
}

fn rotate(
    file: &Path,
    name: &str,
    overlap: Duration,
    expires: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let (secret, key) = create_key(name)?;
    let now = Timestamp::now();
    let until = lifetime::time_from_now(overlap)?;
    let (count, key) = key_file::change_keys(file, |keys| {
        let old = keys.iter_mut().filter(|key| key.name == name);
        let mut old: Vec<_> =
            old.filter(|key| key.expires.is_none_or(|expires| expires > now)).collect();
        let Some(last) = old.last() else {
            bail!("`{name}` has no valid key; create one with `toolgate key new {name}`");
        };
        let old_lifetime = match (last.made, last.expires) {
            (Some(made), Some(expires)) => Some(Duration::try_from(expires - made)?),
            (_, _) => None,
        };
        let expires = expires.or(old_lifetime).map(lifetime::time_from_now).transpose()?;
        let key = ApiKey { roles: last.roles.clone(), expires, ..key };
        for key in &mut old {
            key.expires = Some(key.expires.map_or(until, |expires| expires.min(until)));
        }
        let count = old.len();
        keys.push(key.clone());
        Ok((count, key))
    })?;
    let validity = key.expires.map(|end| format!(", valid until {end:.0}")).unwrap_or_default();
    complain(&format!(
        "created a key for `{name}`{validity}. toolgate shows the key only once. Old keys that \
         expire at {until:.0}: {count}"
    ));
    print(&format!("{secret}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn revoke(file: &Path, prefix: Option<&str>, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let prefix = prefix.map(str::to_ascii_lowercase);
    if prefix.as_ref().is_some_and(|prefix| prefix.len() < PREFIX_MIN) {
        bail!("give at least {PREFIX_MIN} digits of the digest; `toolgate key list` shows them");
    }
    let revoked = key_file::change_keys(file, |keys| {
        let matches = |key: &ApiKey| match (&prefix, name) {
            (Some(prefix), _) => key.sha256.to_ascii_lowercase().starts_with(prefix.as_str()),
            (None, name) => name == Some(key.name.as_str()),
        };
        let revoked: Vec<ApiKey> = keys.extract_if(.., |key| matches(key)).collect();
        match (revoked.len(), &prefix) {
            (0, _) => bail!("no key matches; `toolgate key list` lists the keys"),
            (count @ 2.., Some(_)) => {
                bail!("{count} keys have digests with this beginning; give more digits")
            }
            (_, _) => Ok(revoked),
        }
    })?;
    for key in revoked {
        complain(&format!("revoked the key {} of `{}`", &key.sha256[..DIGEST_SHOWN], key.name));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let keys = key_file::list_keys(file)?;
    if json {
        let keys: Vec<_> = keys.unwrap_or_default();
        print(&format!("{}\n", serde_json::to_string_pretty(&keys)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(keys) = keys else {
        complain(&format!(
            "there are no keys: {} does not exist; `toolgate key new NAME` creates it",
            file.display()
        ));
        return Ok(ExitCode::SUCCESS);
    };
    let now = Timestamp::now();
    let widest = keys.iter().map(|key| key.name.len()).max().unwrap_or_default().max(6);
    let mut table =
        format!("{:<DIGEST_SHOWN$}  {:<widest$}  {:<20}  VALID\n", "DIGEST", "CALLER", "CREATED");
    for key in &keys {
        let made = key.made.map(|made| format!("{made:.0}")).unwrap_or_default();
        let validity = match key.expires {
            Some(until) if until <= now => format!("expired at {until:.0}"),
            Some(until) => format!("until {until:.0}"),
            None => "until revoked".to_owned(),
        };
        let roles = match key.roles.is_empty() {
            true => String::new(),
            false => format!("  roles: {}", key.roles.join(", ")),
        };
        let digest = &key.sha256[..DIGEST_SHOWN];
        let name = &key.name;
        table += &format!("{digest}  {name:<widest$}  {made:<20}  {validity}{roles}\n");
    }
    print(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// Creates an API key for the caller `name` and prints the lines that add it to the settings file.
/// Fails if the name is invalid.
fn print_config_lines(name: &str) -> anyhow::Result<ExitCode> {
    let (secret, ApiKey { name, sha256, .. }) = create_key(name)?;
    if let Some(command) = nearest_command(&name) {
        complain(&format!(
            "`{name}` is the name of the caller of this key; if you meant a command, run `toolgate key \
             {command}`"
        ));
    }
    complain(&format!("the key of `{name}`, which is shown only once: {secret}"));
    print(&format!("\n[[keys]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Creates an API key for the caller `name`. Returns the secret key, and the entry to store, which
/// contains only a digest of the key. Fails if the name is invalid.
fn create_key(name: &str) -> anyhow::Result<(String, ApiKey)> {
    config::check_caller_name(name)?;
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).context("the system provides no random numbers")?;
    let secret = format!("toolgate_{}", HEXLOWER.encode(&bits));
    let key = ApiKey {
        made: Some(lifetime::to_the_second(Timestamp::now())),
        ..ApiKey::from_secret(name, &secret)
    };
    config::check_keys(&Config { keys: vec![key.clone()], ..Config::default() })?;
    Ok((secret, key))
}
