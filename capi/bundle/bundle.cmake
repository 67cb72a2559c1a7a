# DSGD_BUNDLE=ON: from here on pkg-config finds Cap'n Proto, KJ, libuv and libsodium as archives of our own, and only those.
set(DSGD_BUNDLE_PREFIX ${CMAKE_BINARY_DIR}/bundle)
execute_process(COMMAND ${CMAKE_COMMAND} -E env CXX=${CMAKE_CXX_COMPILER} CC=${CMAKE_C_COMPILER}
                        ${CMAKE_CURRENT_LIST_DIR}/build-deps ${DSGD_BUNDLE_PREFIX}
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "Cap'n Proto and libuv for the bundle were not built; capi/bundle/build-deps says why above")
endif()
set(ENV{PKG_CONFIG_PATH} ${DSGD_BUNDLE_PREFIX}/lib/pkgconfig)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/build-deps)

# The licences of the project and of the libraries inside libdsgd, for wheel and jar. Debian's copyright files carry the texts.
# LIBRARY=PACKAGE for each library that is linked or compiled in.
set(DSGD_NOTICES capnproto=libcapnp-dev libuv=libuv1-dev libsodium=libsodium-dev xxhash=libxxhash-dev
    nlohmann_json=nlohmann-json3-dev)
set(DSGD_TOOL_NOTICES cli11=libcli11-dev)  # inside the dsgd tool
set(DSGD_LICENSES ${CMAKE_BINARY_DIR}/licenses)
set(DSGD_TOOL_LICENSES ${CMAKE_BINARY_DIR}/tool-licenses)

function(dsgd_collect_licenses folder)
  foreach(notice ${ARGN})
    string(REGEX MATCH "^(.+)=(.+)$" _ ${notice})
    set(copyright /usr/share/doc/${CMAKE_MATCH_2}/copyright)
    if(NOT EXISTS ${copyright})
      message(FATAL_ERROR "'${copyright}' is missing, the licence that a package must carry; "
                          "install it with: apt-get install --reinstall ${CMAKE_MATCH_2}")
    endif()
    configure_file(${copyright} ${folder}/${CMAKE_MATCH_1}.txt COPYONLY)
  endforeach()
endfunction()
dsgd_collect_licenses(${DSGD_LICENSES} ${DSGD_NOTICES})
dsgd_collect_licenses(${DSGD_TOOL_LICENSES} ${DSGD_TOOL_NOTICES})
configure_file(${PROJECT_SOURCE_DIR}/LICENSE ${DSGD_LICENSES}/LICENSE COPYONLY)
