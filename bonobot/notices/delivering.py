"""Deliver: take notices that are due to their receivers, and write what came of each."""

from collections.abc import Sequence
from uuid import uuid4

from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.lib.seals import UnreadableSecret
from bonobot.notices import mail, outbox, webhooks
from bonobot.notices.models import Channel, Notice
from bonobot.notices.writing import Subject, row
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action


def deliver_due() -> int:
    """Deliver what is due and nobody else delivers; return how many were tried."""
    mine = outbox.claim_due()
    if mine:
        deliver(mine)
    return len(mine)


def deliver(notices: Sequence[Notice]) -> None:
    """Try each of these claimed notices once; webhooks first, since they wait for each other."""
    by_mail = [one for one in notices if one.channel.kind == Channel.Kind.EMAIL]
    _deliver_by_web([one for one in notices if one.channel.kind == Channel.Kind.WEBHOOK])
    if by_mail:
        for notice, error in mail.send_all(by_mail):
            outbox.settle(notice, error)


def _deliver_by_web(notices: Sequence[Notice]) -> None:
    ready = []
    for notice in notices:
        try:
            ready.append((notice, webhooks.post_of(notice)))
        except UnreadableSecret as problem:
            outbox.settle(notice, f"{problem} ({problem.code})")
    if ready:
        errors = runtime().call(webhooks.send_all, [post for _notice, post in ready])
        for (notice, _post), error in zip(ready, errors, strict=True):
            outbox.settle(notice, error)


def send_test(principal: Principal, channel: Channel) -> Notice:
    """Send a test notice through a channel now, even one that is off; return what became of it."""
    principal.require(Action.MANAGE_NOTICES)
    subject = Subject("notice_channel", str(channel.pk), channel.name)
    text = say(
        "{who} tested this channel. Notices of your organization arrive here.", who=principal.label
    )
    notice = row(channel, "test", subject, text, topic=f"test:{uuid4()}")
    notice.save()
    if outbox.claim(notice):
        deliver([notice])
    return notice
