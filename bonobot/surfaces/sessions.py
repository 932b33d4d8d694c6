"""Sessions: conversations, what waits in them for a person, recordings."""

from bonobot.surfaces.deeds import Area, Deed

AREA = Area(
    "Sessions",
    (
        Deed(
            "See sessions",
            admin="session.list session.steps session.timeline agent.sessions",
            rest="list_sessions list_agent_sessions get_session",
            cli="agents sessions",
        ),
        Deed(
            "Start a session",
            admin="agent.start",
            rest="start_session",
            cli="agents run, agents chat",
        ),
        Deed(
            "Go on with one",
            admin="session.send",
            rest="send_message",
            cli="agents chat",
        ),
        Deed(
            "Send a message again",
            admin="session.retry",
            rest="retry_message",
            cli="agents retry",
        ),
        Deed(
            "Follow one",
            admin="session.steps",
            rest="follow_session",
            cli="agents run, agents chat",
        ),
        Deed(
            "Cancel one",
            admin="session.cancel",
            rest="cancel_session",
            cli="agents cancel",
        ),
        Deed(
            "Take one along",
            admin="session.export",
            rest="export_session",
            cli="agents export-session",
        ),
        Deed(
            "Its pictures and files",
            admin="session.image session.file",
            rest="get_session_image get_session_file",
            why="A terminal shows neither; the export names them.",
        ),
        Deed(
            "What was allowed for a whole session",
            admin="session.revoke",
            rest="list_session_grants revoke_session_grant",
            cli="agents grants, agents revoke-grant",
        ),
        Deed(
            "Calls that wait for a person",
            admin="approval.list approval.arguments",
            rest="list_approvals get_approval",
            cli="approvals list, approvals show",
        ),
        Deed(
            "Answer one",
            admin="approval.answer approval!deny_chosen",
            rest="answer_approval",
            cli="approvals approve, approvals deny",
        ),
        Deed(
            "Questions of servers",
            admin="question.list",
            rest="list_questions get_question",
            cli="questions list, questions show",
        ),
        Deed(
            "Answer a question",
            admin="question.answer",
            rest="answer_question",
            cli="questions answer",
        ),
        Deed(
            "Record a session",
            admin="session.record",
            rest="record_session",
            cli="agents record",
        ),
        Deed(
            "Recordings",
            admin="agent.recordings agent.recording agent.remove_recording",
            rest="list_recordings get_recording remove_recording",
            cli="agents recordings, agents remove-recording",
        ),
        Deed(
            "Replay a recording",
            admin="agent.recording agent.replayed",
            rest="replay_recording list_recording_replays get_recording_replay",
            cli="agents replay",
        ),
    ),
)
