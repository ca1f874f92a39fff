use std::fs;

use super::*;

/// Reads a folder of these files, each named after its place.
fn read(files: &[&str], merges: bool) -> Result<RatelimitFolder, String> {
    let folder = tempfile::tempdir().unwrap();
    for (place, text) in files.iter().enumerate() {
        fs::write(folder.path().join(format!("{place}.yaml")), text).unwrap();
    }
    fs::write(folder.path().join(".hidden"), "- nonsense").unwrap();
    let read = RatelimitFolder::read(folder.path(), OnFailure::Deny, merges, &mut Sources::default());
    let shown = format!("{}/", folder.path().display());
    read.map_err(|faulty| faulty.iter().map(|faults| faults.to_string().replace(&shown, "") + "\n").collect())
}

const SHOP: &str = "domain: shop
descriptors:
  - key: path
    value: /v1/*
    share_threshold: true
    descriptors:
      - key: api_key
        shadow_mode: true
        rate_limit: { unit: Day, requests_per_unit: 20000, name: keys, replaces: [{ name: all }] }
  - key: all
    quota_mode: yes
    metadata: { plan: gold, level: 3 }
    rate_limit:
      unlimited: true
      name: all
";

#[test]
fn a_domain_is_read() {
    let read = read(&[SHOP], false).unwrap();
    let [domain] = &read.domains[..] else { panic!("{read:?}") };
    let [path, all] = &domain.entries[..] else { panic!("{domain:?}") };
    assert_eq!((path.key.as_str(), path.shares, path.verdict.is_none()), ("path", true, true));
    let keys = path.entries[0].verdict.as_ref().unwrap();
    assert_eq!((keys.name.as_deref(), &keys.replaces[..]), (Some("keys"), &["all".to_owned()][..]));
    let limit = &read.limits[keys.limit.as_ref().unwrap()];
    assert!(limit.name.starts_with("shop-path-v1-api-key-"), "{}", limit.name);
    assert_eq!((limit.quota.permits, limit.quota.window_us), (20_000, 86_400_000_000));
    assert_eq!((limit.quota.algorithm.name(), limit.on_failure), ("sliding-cells", OnFailure::Deny));
    let all = all.verdict.as_ref().unwrap();
    assert_eq!((&all.limit, all.quota_mode), (&None, true));
    assert_eq!(all.metadata, Some(serde_json::json!({ "plan": "gold", "level": 3 })));
}

#[test]
fn faults_are_drawn_with_their_place() {
    let faults = read(
        &[
            "domain: shop
descriptors:
  - key: a
    valu: b
    rate_limit: { unit: fortnight, requests_per_unit: -1 }
  - key: a
  - value: c
    shadow_mode: maybe
    share_threshold: true
    rate_limit: { unlimited: true, unit: day, name: x, replaces: [{ name: x }, {}] }
",
            "descriptors: [",
            "",
            "domain: shop",
        ],
        false,
    );
    insta::assert_snapshot!(faults.unwrap_err());
}

#[test]
fn a_domain_may_have_several_files_if_that_is_wanted() {
    let files = ["domain: a\ndescriptors: [{ key: k }]", "domain: a\ndescriptors: [{ key: l }]"];
    assert!(read(&files, false).unwrap_err().contains("there is already a file for this domain"));
    assert_eq!(read(&files, true).unwrap().domains[0].entries.len(), 2);
    let missing = RatelimitFolder::check(Path::new("no/such")).unwrap_err().to_string();
    assert!(missing.starts_with("error: can't read the folder `no/such`"), "{missing}");
}

/// The ways to these two have the same 32 bits of their hash.
#[test]
fn limits_whose_names_would_be_the_same_are_two() {
    let of = |last: u32| {
        let value = format!("{}{last}", "a".repeat(60));
        format!("- {{ key: k, value: {value}, rate_limit: {{ unit: day, requests_per_unit: {last} }} }}\n")
    };
    let names = |values: &[u32]| {
        let text = format!("domain: d\ndescriptors:\n{}", values.iter().copied().map(of).collect::<String>());
        let limits = read(&[&text], false).unwrap().limits;
        limits.iter().map(|(name, limit)| (limit.quota.permits, name.clone())).collect::<BTreeMap<_, _>>()
    };
    let (one, both) = (names(&[75_215]), names(&[75_215, 96_075]));
    assert_eq!((both.len(), &both[&75_215]), (2, &one[&75_215]), "{both:?}");
    assert_eq!(names(&[96_075])[&96_075], one[&75_215]);
}

#[test]
fn no_limit_of_a_merged_domain_hides_another() {
    let of = |value: &str, key: &str, limit: u32| {
        format!(
            "domain: shop\ndescriptors:\n- key: other\n  value: {key}\n- key: tenant\n  value: {value}\n  descriptors:\n  - key: {key}\n    \
             rate_limit: {{ unit: minute, requests_per_unit: {limit} }}\n"
        )
    };
    let told = |value: &str| read(&[&of("acme", "path", 2), &of(value, "user", 3)], true);
    insta::assert_snapshot!(told("acme").unwrap_err(), @r"
    error: there is already a descriptor `tenant` with this value
     --> 1.yaml:5:8
      |
    5 | - key: tenant
      |        ^^^^^^ again here, first in 0.yaml:5
      |
      = help: write the two as one descriptor, or give it another value

    1.yaml: 1 error
    ");
    assert_eq!(told("globex").unwrap().limits.len(), 2);
    // Domains that differ may have the same entries.
    let other = of("acme", "path", 2).replace("shop", "store");
    assert!(read(&[&of("acme", "path", 2), &other], true).is_ok());
}

/// Each fault costs a walk through the text when it is drawn.
#[test]
fn no_more_faults_are_reported_than_anybody_reads() {
    let entries = "- value: x\n".repeat(20_000);
    let text = format!("domain: shop\ndescriptors:\n{entries}");
    let read = RatelimitFolder::of_texts([("f".to_owned(), text)], OnFailure::Deny, false);
    assert_eq!(read.unwrap_err().records().len(), MAX_FAULTS);
}
