//! Decides which URIs belong to an upstream, and detects URIs that several upstreams claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use toolgate_contract::{UriClaimStrength, lock_mutex};

use super::UpstreamListing;
use super::skill_index::{SkillIndex, own_scheme};

/// Maximum number of URI conflicts of one listing that are logged.
const CONFLICTS_LOGGED_MAX: usize = 3;

/// The URIs that each upstream lists. Clones share one map.
#[derive(Clone, Default)]
pub(crate) struct UriOwnership(Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>);

impl UriOwnership {
    /// Records the URIs in `listing` as those of the upstream `name`, and logs conflicts with other
    /// upstreams.
    pub(crate) fn record(&self, name: &str, listing: &UpstreamListing) {
        let own = resource_uris(listing).chain(uri_templates(listing)).chain(skill_uris(listing));
        let own: BTreeSet<_> = own.map(str::to_owned).collect();
        let mut all = lock_mutex(&self.0);
        let mut logged = 0;
        for (other, other_uris) in all.iter().filter(|(other, _)| *other != name) {
            for uri in
                own.intersection(other_uris).take(CONFLICTS_LOGGED_MAX.saturating_sub(logged))
            {
                let first = other.as_str().min(name);
                tracing::warn!(
                    "the upstreams `{other}` and `{name}` both have {uri:?}; `{first}` serves it"
                );
                logged += 1;
            }
        }
        match own.is_empty() {
            true => _ = all.remove(name),
            false => _ = all.insert(name.to_owned(), own),
        }
    }
}

/// Returns the strength of an upstream's claim on `uri`, based on its `listing` and `skills`.
/// `None` if `uri` cannot belong to the upstream.
pub(crate) fn claim_of_uri(
    listing: &UpstreamListing,
    skills: &SkillIndex,
    uri: &str,
) -> Option<UriClaimStrength> {
    let schemes = || resource_uris(listing).chain(uri_templates(listing)).filter_map(own_scheme);
    if resource_uris(listing).any(|one| one == uri) || skills.has_file(uri) {
        Some(UriClaimStrength::Listed)
    } else if skills.skill_of(uri).is_some() {
        // A skill's folder holds only files of that skill.
        Some(UriClaimStrength::Inside)
    } else if uri_templates(listing).any(|template| matches_template(template, uri)) {
        Some(UriClaimStrength::Template)
    } else if schemes().any(|scheme| uri.starts_with(scheme)) || skills.has_own_scheme(uri) {
        Some(UriClaimStrength::Scheme)
    } else {
        None
    }
}

fn resource_uris(listing: &UpstreamListing) -> impl Iterator<Item = &str> {
    listing.resources.iter().filter_map(|entry| entry.get("uri").and_then(Value::as_str))
}

fn uri_templates(listing: &UpstreamListing) -> impl Iterator<Item = &str> {
    listing.templates.iter().filter_map(|entry| entry.get("uriTemplate").and_then(Value::as_str))
}

/// Returns the URI of the main file of each skill in the listing.
fn skill_uris(listing: &UpstreamListing) -> impl Iterator<Item = &str> {
    listing.skills.iter().filter_map(|entry| entry.get("uri").and_then(Value::as_str))
}

/// Returns true if `uri` matches the literal parts of the URI template `template` in their order.
///
/// A template that does not start with a whole scheme matches nothing.
fn matches_template(template: &str, uri: &str) -> bool {
    let mut literals = template.split('{');
    let start = literals.next().unwrap_or_default();
    let Some(mut rest) = uri.strip_prefix(start).filter(|_| start.contains(':')) else {
        return false;
    };
    let mut literals = literals.map(|part| part.split_once('}').map_or("", |(_, after)| after));
    let Some(end) = literals.next_back() else { return rest.is_empty() };
    for literal in literals {
        let Some((_, after)) = rest.split_once(literal) else { return false };
        rest = after;
    }
    rest.ends_with(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn a_template_matches_its_expansions_and_a_plain_one_only_itself(
            start in "[a-z]{1,5}:[a-z/{}]{0,5}", value in any::<String>(), other in any::<String>(),
        ) {
            let plain = start.replace(['{', '}'], "");
            let filled = format!("{plain}{value}/x");
            let template = format!("{plain}{{+v}}/x");
            prop_assert!(matches_template(&template, &filled));
            prop_assert_eq!(matches_template(&plain, &other), plain == other);
            // Any pair of texts can be compared.
            let _ = matches_template(&start, &other) || matches_template(&other, &start);
        }
    }

    #[test]
    fn a_listed_uri_is_a_stronger_claim_than_a_template_or_a_scheme() {
        let skill = |folder: &str, name: &str| {
            let uri = format!("{folder}/SKILL.md");
            json!({ "uri": uri, "frontmatter": { "name": name }, "resources": "dynamic" })
        };
        let listing = UpstreamListing {
            resources: vec![json!({ "uri": "a://1" }), json!({ "uri": "https://x/1" })],
            templates: vec![
                json!({ "uriTemplate": "b://{x}/y" }),
                json!({ "uriTemplate": "d{+x}" }),
            ],
            skills: vec![skill("https://x/s", "s"), skill("skill://t", "t")],
            ..UpstreamListing::default()
        };
        let skills = SkillIndex::from_listing("up", &listing);
        for (uri, expected) in [
            ("skill://t/SKILL.md", Some(UriClaimStrength::Listed)),
            ("skill://t/a/b", Some(UriClaimStrength::Inside)),
            ("skill://t", Some(UriClaimStrength::Inside)),
            ("skill://tea/SKILL.md", Some(UriClaimStrength::Scheme)),
            ("https://x/s/a", Some(UriClaimStrength::Inside)),
            ("a://1", Some(UriClaimStrength::Listed)),
            ("b://1/y", Some(UriClaimStrength::Template)),
            ("b://1", Some(UriClaimStrength::Scheme)),
            ("a://2", Some(UriClaimStrength::Scheme)),
            ("https://x/1", Some(UriClaimStrength::Listed)),
            ("https://x/2", None),
            ("docs://1", None),
        ] {
            assert_eq!(claim_of_uri(&listing, &skills, uri), expected, "{uri}");
        }
    }
}
