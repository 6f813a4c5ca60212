//! The units as shipped, in a real systemd: socket activation, a daemon that is killed, restarted,
//! reloaded, upgraded and stopped, the watchdog, and a policy for a templated service, while
//! programs work.
//!
//! systemd boots in a container over an overlay of this machine's root, and runs
//! `integration/systemd/scenario.sh`, or another scenario. It needs root. `cargo xtask test
//! --systemd` runs it.

use std::path::Path;

use anyhow::{Result, ensure};
use integration::{Container, Fixture, build, workspace_dir};

mod standing;

/// A container with the programs and the units as shipped.
fn container() -> Result<Container> {
    let container = Container::over(Path::new("/"))?;
    container.copy(&integration::xrayd()?, "usr/bin/xrayd")?;
    container.copy(&integration::xrayctl()?, "usr/bin/xrayctl")?;
    container.copy(&integration::relay()?, "usr/bin/xray-relay")?;
    let shipped = workspace_dir().join("systemd");
    container.copy(
        &shipped.join("sysusers.d/xray-relay.conf"),
        "usr/lib/sysusers.d/xray-relay.conf",
    )?;
    container.copy(&shipped.join("access.toml"), "xrayd-test/access.toml")?;
    for unit in ["xrayd.service", "xrayd.socket", "xray-relay.service"] {
        let shipped = workspace_dir().join("systemd").join(unit);
        container.copy(&shipped, &format!("etc/systemd/system/{unit}"))?;
    }
    container.want("sockets", "xrayd.socket")?;
    container.copy(&build(Fixture::Counted)?, "xrayd-test/program")?;
    Ok(container)
}

#[test]
#[ignore = "boots systemd as root; `cargo xtask test --systemd` runs it"]
fn the_units_keep_what_they_promise() -> Result<()> {
    let container = container()?;
    let passed = container.run(&workspace_dir().join("integration/systemd/scenario.sh"))?;
    println!("{passed} checks passed");
    ensure!(passed > 50, "only {passed} checks");
    Ok(())
}
