//! The RPCs on rules of access.

use tonic::Request;
use xrayd_proto::v1;

use super::{authorise, authorise::Authority, connection::Client, convert, handling::Service};
use crate::{
    access::Verb,
    audit::Operation,
    refusal::{Reason, Refusal},
    target::Caller,
};

/// The most groups of a user.
const MOST_GROUPS: usize = 65536;

type Result<T> = std::result::Result<T, tonic::Status>;

impl Service {
    pub(super) async fn access_rules(
        &self,
        request: Request<v1::GetAccessRequest>,
    ) -> Result<v1::GetAccessResponse> {
        let v1::GetAccessRequest { reload } = *request.get_ref();
        let operation = match reload {
            true => Operation::ReloadAccess,
            false => Operation::GetAccess,
        };
        let (call, authority) = self.call(&request, operation)?;
        let access = self.access.clone();
        let status = self
            .blocking(call, move |_, _| {
                authority.administration()?;
                Ok(match reload {
                    true => access.load(),
                    false => access.status(),
                })
            })
            .await?;
        Ok(v1::GetAccessResponse {
            path: status
                .path
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
            text: status.text,
            mistakes: status.mistakes.into_iter().map(convert::mistake).collect(),
        })
    }

    pub(super) async fn checked_access(
        &self,
        request: Request<v1::CheckAccessRequest>,
    ) -> Result<v1::CheckAccessResponse> {
        let (call, authority) = self.call(&request, Operation::CheckAccess)?;
        let v1::CheckAccessRequest { uid, gids, pid } = request.into_inner();
        let access = self.access.clone();
        let answers = self
            .blocking(call.of(pid), move |_, _| {
                let subject = match uid {
                    None => authority,
                    Some(uid) => {
                        authority.administration()?;
                        if gids.len() > MOST_GROUPS {
                            let message = format!("a user has {MOST_GROUPS} groups at most");
                            return Err(Refusal::new(Reason::Limit, message));
                        }
                        let client = Client::new(Caller::of_user(uid, gids.first()), gids);
                        Authority::of(&client, &access)?
                    }
                };
                let verbs = Verb::ALL.into_iter();
                let verbs = verbs.filter(|verb| verb.is_about_processes() == (pid != 0));
                let pid = (pid != 0).then(|| authorise::one(pid)).transpose()?;
                let answers = verbs.map(|verb| answer(&subject, verb, pid));
                Ok(answers.collect())
            })
            .await?;
        Ok(v1::CheckAccessResponse { answers })
    }
}

fn answer(subject: &Authority, verb: Verb, pid: Option<crate::Pid>) -> v1::AccessAnswer {
    let (allowed, line) = match pid {
        Some(pid) => subject.explain_process(verb, pid),
        None => subject.explain_daemon(verb),
    };
    let (is_allowed, why) = match allowed {
        Ok(why) => (true, why.to_owned()),
        Err(why) => (false, why),
    };
    v1::AccessAnswer {
        verb: verb.name().to_owned(),
        is_allowed,
        why,
        line: u32::try_from(line).unwrap_or(u32::MAX),
    }
}
