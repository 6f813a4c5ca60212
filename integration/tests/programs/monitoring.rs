//! The rules and the dashboard of `docs/monitoring`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use integration::{Tool, workspace_dir};
use serde_json::Value;

#[test]
fn the_alerts_fire_for_what_they_say() -> Result<()> {
    let rules = workspace_dir().join("docs/monitoring/alerts.yml");
    let tests = workspace_dir().join("docs/monitoring/alerts_test.yml");
    let checked = Tool::Promtool.run(["check".as_ref(), "rules".as_ref(), rules.as_os_str()])?;
    ensure!(checked.contains("7 rules found"), "{checked}");
    let tested = Tool::Promtool.run(["test".as_ref(), "rules".as_ref(), tests.as_os_str()])?;
    ensure!(tested.contains("SUCCESS"), "{tested}");
    // Each rule has a test that fires it.
    let (rules, tests) = (fs::read_to_string(rules)?, fs::read_to_string(tests)?);
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let fires = tests.split("- eval_time").any(|test| {
            test.contains(&format!("alertname: {alert}\n")) && test.contains("exp_labels")
        });
        ensure!(fires, "nothing tests {alert}");
    }
    Ok(())
}

#[test]
fn rules_and_dashboard_use_metrics_that_exist() -> Result<()> {
    let docs = workspace_dir().join("docs");
    let manual = fs::read_to_string(docs.join("metrics.md"))?;
    let rows = manual
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: BTreeSet<&str> = rows.collect();
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(docs.join("monitoring/dashboard.json"))?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let mut texts: Vec<String> = targets
        .filter_map(|target| Some(target["expr"].as_str()?.to_owned()))
        .collect();
    ensure!(texts.len() >= panels.len(), "a panel without a query");
    texts.push(fs::read_to_string(docs.join("monitoring/alerts.yml"))?);
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    for text in &texts {
        let words = text.split(|character| !is_part(character));
        let names = words.filter(|word| {
            // A label of that name tells the state, and the rest are names of the product.
            word.starts_with("xrayd_") || word.starts_with("process_")
        });
        for name in names {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            ensure!(known.contains(family), "{name} is in no table");
        }
    }
    Ok(())
}
