//! `xrayctl access`: rules of access.

use nix::unistd::{Gid, Uid, User, getgrouplist};
use xrayd_proto::v1::{CheckAccessRequest, GetAccessRequest, GetAccessResponse};

use crate::args::Format;
use crate::client::Daemon;
use crate::failure::{self, Failure};
use crate::output::access::{Answers, Asked, Rules};
use crate::output::text::quoted;
use crate::output::{Console, units};
use crate::process::OnlyProcess;

const EXAMPLES: &str = "\
Rules of access give users and groups rights to processes of other users. The daemon reads them from
a file (xrayd --access-file). xrayd-access(5) describes it.

Examples:
  xrayctl access show
  xrayctl access check --as alice --pid 1234
  xrayctl access reload";

const CHECK_EXAMPLES: &str = "\
For each right, check answers whether the user has it, and why. With a process, it answers about the
rights to that process as it is now, otherwise about the rights that are not about processes.

Examples:
  xrayctl access check --pid 1234
  xrayctl access check --as alice --comm server
  xrayctl access check --as relay --json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show what a user may do, and why
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Show the rules in force
    Show(ShowArgs),
    /// Have the daemon read its file of rules again
    Reload(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// The user, by name or number, with its groups; without it, the caller. Only root, the
    /// daemon's user, and users with the right admin may ask about others
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    #[command(flatten)]
    process: OnlyProcess,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    match args.command {
        Command::Check(args) => check(args, daemon, console).await,
        Command::Show(args) => rules(false, &args, daemon, console).await,
        Command::Reload(args) => rules(true, &args, daemon, console).await,
    }
}

async fn rules(
    reload: bool,
    args: &ShowArgs,
    daemon: &Daemon,
    console: &mut Console,
) -> anyhow::Result<()> {
    let mut rpc = daemon.connect().await?;
    let got = rpc.get_access(GetAccessRequest { reload }).await;
    let got: GetAccessResponse = got
        .map_err(|status| failure::from_status(&status))?
        .into_inner();
    let mistakes = got.mistakes.len() as u64;
    let rules = Rules::new(got);
    match args.format.json {
        true => console.json(&rules)?,
        false => console.show(|out, _| rules.render(out))?,
    }
    match mistakes {
        0 => Ok(()),
        mistakes => {
            let mistakes = units::counted(mistakes, "mistake");
            Err(Failure::Usage(format!("the file has {mistakes}, and changes nothing")).into())
        }
    }
}

async fn check(args: CheckArgs, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let subject = args.user.as_deref().map(groups_of).transpose()?;
    let (uid, gids) = match subject {
        Some((uid, gids)) => (Some(uid), gids),
        None => (None, Vec::new()),
    };
    let pid = args.process.find()?.unwrap_or(0);
    let mut rpc = daemon.connect().await?;
    let request = CheckAccessRequest { uid, gids, pid };
    let checked = rpc.check_access(request).await;
    let checked = checked
        .map_err(|status| failure::from_status(&status))?
        .into_inner();
    let asked = Asked {
        user: args.user,
        pid: (pid != 0).then_some(pid),
    };
    let answers = Answers::new(asked, checked.answers);
    match args.format.json {
        true => console.json(&answers),
        false => console.show(|out, look| answers.render(out, look)),
    }
}

/// The id of a user, and all its groups.
fn groups_of(name: &str) -> anyhow::Result<(u32, Vec<u32>)> {
    let by_id = |id: u32| User::from_uid(Uid::from_raw(id));
    let found = match name.parse() {
        Ok(id) => by_id(id)?,
        Err(_) => User::from_name(name)?,
    };
    let Some(user) = found else {
        // The number of a user without a name, as of a container.
        let no_user = || Failure::Usage(format!("there is no user {}", quoted(name)));
        let id = name.parse().map_err(|_| no_user())?;
        return Ok((id, Vec::new()));
    };
    let c_name = std::ffi::CString::new(user.name)?;
    let mut gids: Vec<u32> = getgrouplist(&c_name, user.gid)?
        .into_iter()
        .map(Gid::as_raw)
        .collect();
    // The first one is that of its processes.
    let own = user.gid.as_raw();
    gids.retain(|gid| *gid != own);
    gids.insert(0, own);
    Ok((user.uid.as_raw(), gids))
}
